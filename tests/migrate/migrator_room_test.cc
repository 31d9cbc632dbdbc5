// SPDX-License-Identifier: Apache-2.0
// How the migrator makes room: when it begins to evict and stops, what it tells faults that wait
// for room, and what it says of pages that cannot leave.
#include <poll.h>

#include "tests/migrate/migrator_fixture.h"

namespace tidepool {
namespace {

// ---- Room.

class Room : public MigratorTest {
 protected:
  /// The budget's limit, and how much of it there is left, and who has the rest.
  void setRoom(uint64_t most, uint64_t room) {
    setLimit(most);
    if (room + held() > most) {
      core_.budget.discharge(PageCount(room + held() - most));
    } else {
      core_.budget.charge(PageCount(most - held() - room));
    }
    ASSERT_EQ(core_.budget.room().value(), room);
  }
};

TEST_F(Room, IsMadeWhenLessThanTwiceTheLeastIsLeft) {
  makeMigrator();
  localPages(200);
  setRoom(4096, 64);
  turn();
  EXPECT_EQ(out(), 0u);
  setRoom(4096, 63);
  turn();
  EXPECT_EQ(out(), 4096u / 48) << "as much as may be in limbo";
  turn();
  EXPECT_EQ(out(), 4096u / 48) << "so much is on its way";
  EXPECT_TRUE(core_.room.pagesLeave());
}

// They are out as soon as they are taken, and no channel says so: a fault that waits for room must
// not wait for the next tick.
TEST_F(Room, PagesOfZerosMakeItAtOnce) {
  makeMigrator();
  const PageIndex first = allocate();
  alignas(kPageSize) constexpr std::byte kZeros[kPageSize] = {};
  for (uint64_t i = 0; i < 200; ++i) makeLocal(first + i, kZeros);
  setRoom(4096, 0);
  letFaultsWait();
  core_.need_memory.ring();
  turn();
  ASSERT_EQ(out(), 4096u / 48);
  pollfd rung{core_.need_memory.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&rung, 1, 0), 1) << "the migrator's next turn begins without a wait";
  turn();
  EXPECT_EQ(core_.budget.room().value(), 4096u / 48);
  EXPECT_EQ(core_.stats->zero_pages.load(), 4096u / 48);
}

TEST_F(Room, OfALargeBudgetMoreIsLeft) {
  makeMigrator();
  localPages(1200);
  setRoom(65536, 512);
  turn();
  EXPECT_EQ(out(), 0u);
  setRoom(65536, 511);
  turn();
  EXPECT_EQ(out(), 1024u) << "and no more than this is in limbo";
}

TEST_F(Room, OfAHugeBudgetNoMoreIsLeftThanIsOfUse) {
  makeMigrator();
  localPages(1200);
  setRoom(1u << 20, 1024);
  turn();
  EXPECT_EQ(out(), 0u);
  setRoom(1u << 20, 1023);
  turn();
  EXPECT_EQ(out(), 1024u);
}

TEST_F(Room, OfASmallBudgetThatMuchIsInLimboAtLeast) {
  makeMigrator();
  localPages(200);
  setRoom(300, 63);
  turn();
  EXPECT_EQ(out(), 64u);
}

TEST_F(Room, BeyondTheLimitWhatIsTooMuchLeavesAsWell) {
  makeMigrator();
  localPages(500);
  setLimit(400);
  turn();
  EXPECT_EQ(out(), 64u + 100);
  EXPECT_EQ(held(), 500u);
  arrive();
  // 128 pages are one batch, the others one; all go, since there is no room at all.
  EXPECT_EQ(held(), 500u - 164 + 0);
  EXPECT_EQ(out(), 0u) << "there is room enough";
}

TEST_F(Room, LimboIsFreedAsFarAsRoomIsWanted) {
  makeMigrator();
  localPages(400);
  setRoom(6144 * 2, 95);  // 48 is the least, 256 in limbo
  turn();
  ASSERT_EQ(out(), 256u);
  arrive();
  EXPECT_EQ(out(), 256u) << "there is room: they stay in limbo";
  EXPECT_EQ(core_.stats->demotions.load(), 0u);
  setRoom(6144 * 2, 48);
  turn();
  EXPECT_EQ(core_.stats->demotions.load(), 0u);
  setRoom(6144 * 2, 47);
  turn();
  EXPECT_EQ(core_.stats->demotions.load(), 128u) << "one batch will do";
  EXPECT_EQ(out(), 128u) << "and there is room again";
}

TEST_F(Room, ThatIsMadeIsToldToFaultsThatWait) {
  makeMigrator();
  localPages(400);
  setRoom(4096, 0);
  turn();
  letFaultsWait();
  turn();
  EXPECT_FALSE(rung(core_.freed_memory)) << "nothing has been freed";
  arrive();
  EXPECT_GE(core_.budget.room(), PageCount(32)) << "in the same turn";
  EXPECT_TRUE(rung(core_.freed_memory));
}

TEST_F(Room, ThatIsMadeIsToldToNobodyWhereNobodyWaits) {
  makeMigrator();
  localPages(400);
  setRoom(4096, 0);
  turn();
  arrive();
  EXPECT_FALSE(rung(core_.freed_memory));
}

TEST_F(Room, LittleThatWasFreedIsToldAsWell) {
  makeMigrator();
  localPages(1);
  setLimit(10);
  core_.budget.charge(PageCount(20));
  turn();
  ASSERT_EQ(out(), 1u);
  letFaultsWait();
  core_.budget.discharge(PageCount(5));
  arrive();
  EXPECT_EQ(core_.budget.room(), PageCount());
  EXPECT_TRUE(rung(core_.freed_memory));
}

TEST_F(Room, ThatTheProgramMadeIsTold) {
  makeMigrator();
  setRoom(4096, 16);
  localPages(0);
  letFaultsWait();
  turn();
  EXPECT_TRUE(rung(core_.freed_memory));
  RoomState::Demand(core_.room).setFaultsWait(false);
  turn();
  rung(core_.freed_memory);
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
}

TEST_F(Room, TooLittleForAnyReadIsNotTold) {
  makeMigrator();
  localPages(100);
  setRoom(4096, 15);
  turn();
  rung(core_.freed_memory);
  letFaultsWait();
  turn();
  EXPECT_TRUE(evictor_->busy());
  EXPECT_FALSE(rung(core_.freed_memory));
  setRoom(4096, 16);
  turn();
  EXPECT_TRUE(rung(core_.freed_memory)) << "but this will do";
}

TEST_F(Room, WhereFarMemoryTakesNothingMoreFaultsLookForThemselves) {
  makeMigrator();
  localPages(100);
  setRoom(4096, 0);
  turn();
  arrive(ErrorCode::kUnreachable);
  ASSERT_FALSE(evictor_->usable());
  letFaultsWait();
  turn();
  EXPECT_TRUE(rung(core_.freed_memory));
  RoomState::Demand(core_.room).setFaultsWait(false);
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
  // While more far memory is on its way they need not, unless there is room.
  letFaultsWait();
  RoomState::Supply(core_.room).setGrowing(true);
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
  setRoom(4096, 15);
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
  setRoom(4096, 16);
  turn();
  EXPECT_TRUE(rung(core_.freed_memory));
  EXPECT_EQ(out(), 0u);
  RoomState::Supply(core_.room).setNothingLeaves(true);
  turn();
  RoomState::Supply(core_.room).setFarExhausted(false);
  EXPECT_FALSE(core_.room.pagesLeave()) << "nobody knows";
}

TEST_F(Room, NobodyWaitsForFarMemoryThatWasOnItsWayAndWillNotCome) {
  makeMigrator();
  localPages(300);
  setLimit(300);
  ASSERT_TRUE(tier_->allocate(PageCount(4096)));
  RoomState::Supply(core_.room).setGrowing(true);
  turn();
  ASSERT_FALSE(evictor_->usable());
  EXPECT_TRUE(core_.roomWillCome());
  RoomState::Supply(core_.room).setGrowing(false);
  turn();
  EXPECT_FALSE(core_.roomWillCome());
}

TEST_F(Room, WhatIsFreedIsToldWhileMoreIsOnItsWay) {
  makeMigrator();
  localPages(300);
  setLimit(10);
  turn();
  ASSERT_EQ(out(), 300u);
  rung(core_.freed_memory);
  letFaultsWait();
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
  tier_->end(1);
  turn();
  EXPECT_EQ(out(), 172u);
  EXPECT_EQ(core_.budget.room(), PageCount());
  EXPECT_TRUE(rung(core_.freed_memory)) << "far memory that cannot give all of it gives this";
}

TEST_F(Room, WhatLeavesIsWhatIsNotOnItsWayYet) {
  makeMigrator();
  localPages(50);
  setRoom(4096, 63);
  turn();
  ASSERT_EQ(out(), 50u);
  makeLocal(allocate(), 200);
  setRoom(4096, 63);
  turn();
  EXPECT_EQ(out(), 85u);
}

// ---- Pages that cannot leave.

class Stuck : public Room {
 protected:
  void SetUp() override {
    Room::SetUp();
    makeMigrator();
    first_ = localPages(100);
    core_.space->placements().set(granuleOf(first_), Placement::local());
  }
  bool stuck() const { return !core_.room.pagesLeave(); }
  PageIndex first_;
};

TEST_F(Stuck, IsToldToFaultsThatWait) {
  setRoom(4096, 10);
  letFaultsWait();
  turn();
  EXPECT_TRUE(stuck());
  EXPECT_TRUE(rung(core_.freed_memory));
  RoomState::Demand(core_.room).setFaultsWait(false);
  turn();
  EXPECT_FALSE(rung(core_.freed_memory));
  core_.space->placements().set(granuleOf(first_), Placement());
  turn();
  EXPECT_FALSE(stuck()) << "now some can";
}

TEST_F(Stuck, IsOverWhenThereIsRoom) {
  setRoom(4096, 10);
  turn();
  EXPECT_TRUE(stuck());
  setRoom(4096, 64);
  turn();
  EXPECT_FALSE(stuck());
}

TEST_F(Stuck, IsSaidOnceItHasLasted) {
  setRoom(4096, 15);
  clock_.advance(Nanoseconds(5'000'000'000));
  turn();
  EXPECT_TRUE(stuck());
  EXPECT_EQ(errors(), 0u) << "one look says nothing, however late it comes";
  clock_.advance(Nanoseconds(500'000'000));
  turn();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(Stuck, IsNotSaidBefore) {
  clock_.advance(Nanoseconds(5'000'000'000));
  setRoom(4096, 64);
  turn();
  setRoom(4096, 15);
  turn();
  clock_.advance(Nanoseconds(499'999'999));
  turn();
  EXPECT_EQ(errors(), 0u);
  clock_.advance(Nanoseconds(1));
  turn();
  EXPECT_EQ(errors(), 1u);
  EXPECT_NE(error().find("pinned or protected"), std::string::npos);
  clock_.advance(Nanoseconds(1'000'000'000));
  turn();
  EXPECT_EQ(errors(), 1u) << "once";
}

TEST_F(Stuck, CountsAnewAfterRoomCame) {
  setRoom(4096, 15);
  turn();
  clock_.advance(Nanoseconds(499'999'999));
  setRoom(4096, 64);
  turn();
  setRoom(4096, 15);
  clock_.advance(Nanoseconds(1));
  turn();
  EXPECT_TRUE(stuck());
  EXPECT_EQ(errors(), 0u);
  clock_.advance(Nanoseconds(500'000'000));
  turn();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(Stuck, IsNotSaidWhileThereIsRoomForAFault) {
  setRoom(4096, 16);
  clock_.advance(Nanoseconds(5'000'000'000));
  turn();
  EXPECT_TRUE(stuck());
  EXPECT_EQ(errors(), 0u);
  setRoom(4096, 15);
  clock_.advance(Nanoseconds(499'999'999));
  turn();
  EXPECT_EQ(errors(), 0u) << "it counts from there";
}

TEST_F(Stuck, IsNotSaidOfPagesThatAreOnTheirWay) {
  setRoom(4096, 0);
  const PageIndex other = allocate();
  makeLocal(other, 10);
  clock_.advance(Nanoseconds(5'000'000'000));
  turn();
  EXPECT_FALSE(stuck());
  EXPECT_EQ(out(), 10u);
  EXPECT_EQ(errors(), 0u);
}

TEST_F(Stuck, IsNotSaidWhereFarMemoryIsFull) {
  setRoom(4096, 0);
  const PageIndex other = allocate();
  makeLocal(other, 10);
  ASSERT_TRUE(tier_->allocate(PageCount(4096)));
  turn();
  EXPECT_FALSE(evictor_->usable());
  RoomState::Supply(core_.room).setFarExhausted(false);
  EXPECT_FALSE(stuck()) << "that was all that there was";
}

}  // namespace
}  // namespace tidepool
