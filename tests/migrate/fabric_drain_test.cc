// SPDX-License-Identifier: Apache-2.0
// How regions of the fabric are left, because they are drained, idle or lost.
#include "tests/migrate/fabric_memory_fixture.h"

namespace tidepool {
namespace {

// ---- The way out of a region.

TEST_F(FabricMemoryTest, ADrainedRegionIsGivenBackWhenNobodyIsInside) {
  begin();
  sayMemoryIsShort(false);
  tend();
  rung(core_.freed_memory);
  say(NoticeKind::kDrain, 7);
  tend();
  EXPECT_TRUE(rung(core_.freed_memory)) << "for the fault service to look";
  expectReturned(7);
  tend();
  expectSilence();
  say(NoticeKind::kReturned, 7, Bytes(), 3);
  give(8, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr) << "its number is free";
}

TEST_F(FabricMemoryTest, ADrainOfAnotherRegionIsNotHeard) {
  begin();
  say(NoticeKind::kDrain, 8);
  tend();
  EXPECT_NE(core_.tiers.find(1), nullptr);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
}

TEST_F(FabricMemoryTest, WhatIsSaidOfRegionsThatAreNotHereOrNotOnTheirWayChangesNothing) {
  begin();
  for (const NoticeKind kind : {NoticeKind::kReturned, NoticeKind::kResume, NoticeKind::kGone}) {
    say(kind, 8);
    tend();
  }
  say(NoticeKind::kReturned, 7);
  tend();
  EXPECT_EQ(errors(), 0u);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>{7});
}

TEST_F(FabricMemoryTest, WhatCannotBeMovedLingersAndTakesPagesUntilItIsTriedAgain) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  // A granule that nothing names: nothing can move it.
  const auto held = tier.table().allocate(PageCount(1));
  ASSERT_TRUE(held);
  say(NoticeKind::kDrain, 7);
  tend();
  refuse(expect(RequestKind::kLeft), ErrorCode::kNoSpace);  // of no request: it changes nothing
  EXPECT_FALSE(tier.closed());
  const Request ask = expect(RequestKind::kAsk);
  refuse(ask, ErrorCode::kPermission);
  tend();
  EXPECT_FALSE(tier.closed());
  tier.table().release(*held);
  tendAfter(kSecond - Nanoseconds(1));
  EXPECT_EQ(core_.tiers.find(1), &tier) << "it is not tried all the time";
  tendAfter(Nanoseconds(1));
  EXPECT_EQ(core_.tiers.find(1), nullptr);
}

TEST_F(FabricMemoryTest, AResumedRegionTakesPagesAgain) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  const auto held = tier.table().allocate(PageCount(1));
  ASSERT_TRUE(held);
  say(NoticeKind::kDrain, 7);
  tend();
  say(NoticeKind::kResume, 7);
  tend();
  EXPECT_FALSE(tier.closed());
  tier.table().release(*held);
  tendAfter(kSecond);
  EXPECT_FALSE(tier.closed());
  EXPECT_EQ(core_.tiers.find(1), &tier);
}

TEST_F(FabricMemoryTest, WhatIsLeftIsReportedUntilItIsSaidToBeStuck) {
  beginWithAllThatMayBe();
  const FrameRun held = hold(Bytes(2 * kGranuleSize));
  say(NoticeKind::kDrain, 7);
  EXPECT_EQ(tend(), Nanoseconds(50'000'000)) << "nothing can be done for now";
  Request left = expect(RequestKind::kLeft);
  EXPECT_EQ(left.region, 7u);
  EXPECT_EQ(left.size, Bytes(2 * kGranuleSize));
  EXPECT_EQ(left.waits, agent_wire::Waits::kNot);
  tendAfter(Nanoseconds(499'999'999));
  expectSilence();
  tendAfter(Nanoseconds(1));
  expect(RequestKind::kLeft);
  tendAfter(kSecond);
  left = expect(RequestKind::kLeft);
  EXPECT_EQ(left.waits, agent_wire::Waits::kNot);
  EXPECT_EQ(errors(), 0u);
  tendAfter(kSecond);
  left = expect(RequestKind::kLeft);
  EXPECT_EQ(left.waits, agent_wire::Waits::kRoomOrDevice);
  tendAfter(kSecond);
  tendAfter(kSecond);
  EXPECT_EQ(errors(), 1u) << "it is said once";
  expectSilenceAfter(RequestKind::kLeft);
  core_.tiers.tier(1).table().release({held.first, PageCount(1)});
  tendAfter(kSecond / 2);
  EXPECT_EQ(expect(RequestKind::kLeft).waits, agent_wire::Waits::kNot);
}

TEST_F(FabricMemoryTest, ADrainThatGoesOnIsNotStuck) {
  beginWithAllThatMayBe();
  const FrameRun held = hold(Bytes(8 * kGranuleSize));
  say(NoticeKind::kDrain, 7);
  tend();
  for (uint64_t i = 0; i < 7; ++i) {
    core_.tiers.tier(1).table().release({held.first + i, PageCount(1)});
    tendAfter(kSecond);
  }
  EXPECT_EQ(errors(), 0u);
  while (heard()) EXPECT_EQ(hear().waits, agent_wire::Waits::kNot);
  tendAfter(kSecond * 2);
  tend();
  EXPECT_EQ(errors(), 1u);
}

/// A look's time is over whenever it looks: on an emulated device a granule takes a quarter of a
/// second.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(ManualClock& clock) : clock_(clock) {}
  Nanoseconds now() const override {
    clock_.advance(kSecond);
    return clock_.now();
  }

 private:
  ManualClock& clock_;
};

TEST_F(FabricMemoryTest, ADrainThatIsSlowIsNotStuck) {
  beginWithAllThatMayBe();
  hold(Bytes(2 * kGranuleSize));
  say(NoticeKind::kDrain, 7);
  for (const bool stood_still : {false, true}) {
    SCOPED_TRACE(stood_still);
    if (stood_still) tend();  // a whole turn
    const SlowClock slow(clock_);
    core_.clock = &slow;
    for (int i = 0; i < 10; ++i) tendAfter(kSecond);
    core_.clock = &clock_;
    EXPECT_EQ(errors(), 0u);
    while (heard()) EXPECT_EQ(hear().waits, agent_wire::Waits::kNot);
  }
}

TEST_F(FabricMemoryTest, WhatTheAgentHasTakenBackIsNotReclaimed) {
  beginWithAllThatMayBe();
  say(NoticeKind::kDrain, 7);
  tend();
  expectReturned(7);
  say(NoticeKind::kReturned, 7, Bytes(), 3);
  tend();
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>());
}

TEST_F(FabricMemoryTest, WhatTheAgentHasForgottenIsNotReturnedAgain) {
  beginWithAllThatMayBe();
  say(NoticeKind::kDrain, 7);
  tend();
  expectReturned(7);
  say(NoticeKind::kRefused, 7, Bytes(), 3, ErrorCode::kNotFound);
  tend();
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>());
}

TEST_F(FabricMemoryTest, WhatIsReturnedWhileTheAgentIsAwayIsReclaimedFirst) {
  beginWithAllThatMayBe();
  say(NoticeKind::kDrain, 7);
  tend();
  expectReturned(7);
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>{7});
  tend();
  expectSilence();
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), 2);
  tend();
  tend();
  EXPECT_EQ(expect(RequestKind::kReturn).region, 7u);
}

TEST_F(FabricMemoryTest, ARegionThatIsUsedIsNotIdle) {
  begin();
  sayMemoryIsShort(false);
  const FrameRun held = hold(Bytes(kGranuleSize));
  for (int i = 0; i < 12; ++i) tendAfter(kSecond);
  core_.tiers.tier(1).table().release(held);
  for (int i = 0; i < 9; ++i) tendAfter(kSecond);
  EXPECT_FALSE(core_.tiers.tier(1).closed()) << "nine seconds";
  tendAfter(kSecond);
  EXPECT_TRUE(core_.tiers.find(1) == nullptr || core_.tiers.tier(1).closed());
}

TEST_F(FabricMemoryTest, TheLastRegionStaysWhileMuchOfTheBudgetIsInUse) {
  begin();
  sayMemoryIsShort(false);
  core_.budget.charge(PageCount(core_.budget.limit().value() / 2 + 1));
  for (int i = 0; i < 12; ++i) tendAfter(kSecond);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
}

TEST_F(FabricMemoryTest, OfTwoIdleRegionsOneStaysThatTheOtherIsNotAskedForAgain) {
  begin();
  sayMemoryIsShort(false);
  core_.budget.charge(PageCount(core_.budget.limit().value() / 2 + 1));
  give(8, Bytes(256 * kMiB));
  hold(Bytes(kGranuleSize));
  for (int i = 0; i < 11; ++i) tendAfter(kSecond);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  EXPECT_TRUE(core_.tiers.find(2) == nullptr || core_.tiers.tier(2).closed());
}

TEST_F(FabricMemoryTest, AnIdleRegionStaysIfTheOthersAreNearlyFull) {
  begin();
  sayMemoryIsShort(false);
  give(8, Bytes(256 * kMiB));
  hold(Bytes(130 * kMiB));  // less than twice 64 MiB would be free
  for (int i = 0; i < 12; ++i) tendAfter(kSecond);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  EXPECT_FALSE(core_.tiers.tier(2).closed());
}

// Else a batch that was on its way when the program gave its memory back would keep a region.
TEST_F(FabricMemoryTest, NothingStaysInLimboForGood) {
  connect();
  FakeTier& tier = addTier();
  tier.table().settle();
  evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
  memory_->use(*evictor_, nullptr);
  const PageIndex first = allocate();
  makeLocal(first, 8);
  ASSERT_EQ(evictor_->start(PageCount(8)), PageCount(8));
  tier.endAll();
  evictor_->advance();
  tendAfter(kSecond);
  EXPECT_TRUE(evictor_->written()) << "it may be wanted back";
  tendAfter(kSecond);
  EXPECT_FALSE(evictor_->busy());
  EXPECT_EQ(word(first).state(), PageState::kFar);
}

TEST_F(FabricMemoryTest, AnIdleRegionGoesBack) {
  begin();
  sayMemoryIsShort(false);
  tendAfter(kSecond);
  tendAfter(kSecond * 8);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  tendAfter(kSecond * 2);
  EXPECT_TRUE(core_.tiers.tier(1).closed());
  tend();
  expectReturned(7);
}

// ---- Losses.

TEST_F(FabricMemoryTest, ARegionThatIsGoneIsNotGivenBack) {
  begin();
  sayMemoryIsShort(false);
  say(NoticeKind::kGone, 7, Bytes(), 0, ErrorCode::kLost);
  tend();
  EXPECT_EQ(errors(), 1u);
  EXPECT_EQ(core_.tiers.find(1), nullptr);
  for (int i = 0; i < 3; ++i) {
    faultServiceLooks();
    tend();
  }
  expectSilence();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
}

class FabricMemoryGone : public FabricMemoryTest, public testing::WithParamInterface<int> {};

TEST_P(FabricMemoryGone, ARegionThatIsGoneOnItsWayBackIsNotReturned) {
  beginWithAllThatMayBe();
  say(NoticeKind::kDrain, 7);
  tend();
  EXPECT_EQ(retiring(), 2u);
  for (int i = 0; i < GetParam(); ++i) {
    faultServiceLooks();
    tend();
  }
  say(NoticeKind::kGone, 7, Bytes(), 0, ErrorCode::kLost);
  tend();
  for (int i = 0; i < 4; ++i) {
    faultServiceLooks();
    tend();
  }
  EXPECT_EQ(errors(), 0u) << "nothing was lost";
  expectSilenceAfter(RequestKind::kReturn);
  EXPECT_EQ(reclaimed(), std::vector<uint64_t>());
}
INSTANTIATE_TEST_SUITE_P(AfterLooks, FabricMemoryGone, testing::Values(0, 1, 2));

TEST_F(FabricMemoryTest, OfARegionThatIsCutTheRestIsMovedOff) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  ASSERT_TRUE(tier.table().allocate(PageCount(1)));
  say(NoticeKind::kGone, 7, Bytes(64 * kMiB), 0, ErrorCode::kLost);
  tend();
  EXPECT_TRUE(tier.closed());
  EXPECT_TRUE(tier.forsaken(FrameIndex(64 * kMiB / kPageSize)));
  EXPECT_FALSE(tier.forsaken(FrameIndex(64 * kMiB / kPageSize - 1)));
  say(NoticeKind::kResume, 7);
  tendAfter(kSecond);
  EXPECT_TRUE(tier.closed()) << "it does not linger, nor take pages again";
}

}  // namespace
}  // namespace tidepool
