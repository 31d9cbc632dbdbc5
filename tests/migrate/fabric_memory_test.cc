// SPDX-License-Identifier: Apache-2.0
// How far memory from the agent grows, shrinks and is lost. The test is the agent, at the other end
// of a socket, and the fault service, which lets go of tiers when the test says so.
#include "runtime/migrate/fabric/fabric_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "tests/migrate/fake_core.h"
#include "tests/transport/agent_socket.h"

namespace tidepool {
namespace {

using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::RequestKind;

constexpr Nanoseconds kSecond(1'000'000'000);

class FabricMemoryTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    evictor_ = std::move(*Evictor::create(core_, *staging_, *policy_));
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
    lease_ = std::move(*DirectLease::create(core_, *mover_));
  }
  void TearDown() override {
    // This thread answers for the tables: it must let go of them before they are unmapped.
    faultServiceLooks();
    if (memory_ != nullptr) tend();
    core_.tiers.forEach([](uint8_t, Tier& tier) { tier.table().leave(); });
    memory_.reset();
  }
  void accept(NoticeKind answer = NoticeKind::kWelcome, ErrorCode error = ErrorCode{}) {
    agent_ = socket_.accept();
    ASSERT_TRUE(agent_.valid());
    ASSERT_EQ(hear().kind, RequestKind::kHello);
    say(answer, 0, Bytes(), 0, error);
    if (answer == NoticeKind::kWelcome) {
      ASSERT_TRUE(promiseLease(agent_.get()));
    }
  }
  /// What connect() says if the agent answers so.
  ErrorCode connectTo(NoticeKind answer, ErrorCode error = ErrorCode{}) {
    std::thread agent([&] { accept(answer, error); });
    const auto client = FabricMemory::connect(socket_.path());
    agent.join();
    return client ? ErrorCode{} : client.error().code();
  }
  void connect(Bytes most = Bytes()) {
    std::thread agent([this] { accept(); });
    auto client = FabricMemory::connect(socket_.path());
    agent.join();
    ASSERT_TRUE(client) << client.error().text();
    core_.tiers.expectMore();
    memory_ = std::make_unique<FabricMemory>(core_, std::move(*client), most, *evacuator_, *lease_);
    memory_->use(*evictor_, nullptr);
  }

  // What the agent does.
  bool heard() const {
    pollfd wait{agent_.get(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }
  Request hear() {
    const auto request = hearProgram(agent_.get());
    EXPECT_TRUE(request);
    return request.value_or(Request{});
  }
  void say(NoticeKind kind, uint64_t region = 0, Bytes size = Bytes(), uint64_t tag = 0,
           ErrorCode error = ErrorCode{}, int file = -1) {
    agent_wire::Piece piece;
    piece.length = size;
    ASSERT_TRUE(tellProgram(agent_.get(),
                            {.kind = kind,
                             .tag = tag,
                             .region = region,
                             .epoch = Epoch(1),
                             .size = size,
                             .status = static_cast<uint16_t>(error)},
                            {&piece, file >= 0 ? size_t{1} : size_t{0}}, file));
  }
  void refuse(const Request& request, ErrorCode error) {
    say(NoticeKind::kRefused, request.region, Bytes(), request.tag, error);
  }
  /// Gives a region of memory that is mapped in place, and has it taken.
  void give(uint64_t region, Bytes size = Bytes(32 * kMiB), uint64_t tag = 1) {
    const UniqueFd file(memfd_create("region", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(size.value())), 0);
    say(NoticeKind::kRegion, region, size, tag, {}, file.get());
    tend();
  }
  /// Nothing was asked for since.
  void expectSilence() { EXPECT_FALSE(heard()) << static_cast<int>(hear().kind); }
  /// Nothing but requests of this kind was said.
  void expectSilenceAfter(RequestKind kind) {
    while (heard()) EXPECT_EQ(hear().kind, kind);
  }
  Request expect(RequestKind kind) {
    if (!heard()) {
      ADD_FAILURE() << "nothing was said";
      return {};
    }
    const Request request = hear();
    EXPECT_EQ(request.kind, kind);
    return request;
  }

  Nanoseconds tend() {
    pollfd wait{memory_->fd(), POLLIN, 0};
    return memory_->tend(clock_.now(), memory_->fd() >= 0 && poll(&wait, 1, 0) == 1);
  }
  void tendAfter(Nanoseconds time) {
    clock_.advance(time);
    tend();
  }
  // What others say and hear.
  void sayMemoryIsShort(bool is = true) { RoomState::Demand(core_.room).setFaultsWait(is); }
  bool growing() const { return core_.room.growing(); }
  /// The tiers that are to be destroyed, a bit by number.
  uint32_t retiring() const {
    uint32_t tiers = 0;
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
      const auto stage = core_.retirement.stage(bit);
      const bool begun = stage == TierRetirement::Stage::kAsked;
      if (begun || stage == TierRetirement::Stage::kLetGo) tiers |= bit;
    }
    return tiers;
  }
  void faultServiceLooks() {
    core_.retirement.answer([](uint32_t) {});
  }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  /// Gives the first region to a program that is short of memory.
  void begin() {
    connect();
    sayMemoryIsShort();
    tend();
    expect(RequestKind::kAsk);
    give(7, Bytes(256 * kMiB));
    expectSilence();
  }
  /// With a region of 256 MiB, where no more may be asked for.
  void beginWithAllThatMayBe() {
    connect(Bytes(kPageSize));
    give(7, Bytes(256 * kMiB));
  }
  /// Takes so much of the first region.
  FrameRun hold(Bytes size) {
    const auto held =
        core_.tiers.tier(1).table().allocateWhole(PageCount(size.value() / kGranuleSize));
    EXPECT_TRUE(held);
    EXPECT_EQ(held->count.value() * kGranuleSize, size.value());
    return *held;
  }
  /// The agent goes and comes back; what it hears of is reclaimed.
  std::vector<uint64_t> reclaimed() {
    agent_.reset(-1);
    tend();
    tendAfter(kSecond);
    accept();
    std::vector<uint64_t> regions;
    for (;;) {
      const Request request = hear();
      if (request.kind != RequestKind::kReclaim) {
        EXPECT_EQ(request.kind, RequestKind::kAll);
        return regions;
      }
      regions.push_back(request.region);
    }
  }
  /// From a region that nothing is in to the agent's hearing of it.
  void expectReturned(uint64_t region) {
    EXPECT_EQ(core_.tiers.find(1), nullptr);
    EXPECT_EQ(retiring(), 2u);
    tend();
    expectSilence();
    faultServiceLooks();
    rung(core_.freed_memory);
    tend();
    EXPECT_EQ(retiring(), 0u);
    EXPECT_TRUE(rung(core_.freed_memory)) << "for the fault service to look again";
    expectSilence();
    tend();
    expectSilence();
    faultServiceLooks();
    tend();
    const Request back = expect(RequestKind::kReturn);
    EXPECT_EQ(back.region, region);
  }

  AgentSocket socket_;
  UniqueFd agent_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<DirectLease> lease_;
  std::unique_ptr<Evacuator> evacuator_;
  std::unique_ptr<FabricMemory> memory_;
};

TEST_F(FabricMemoryTest, AsksForNothingUntilItIsNeeded) {
  connect();
  EXPECT_TRUE(growing()) << "who is short of memory waits for the first region";
  EXPECT_TRUE(core_.tiers.moreMayCome());
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  core_.options.dram = Bytes(16 * kMiB);
  core_.budget.charge(PageCount(2048));
  tend();
  expectSilence();
  core_.budget.charge(PageCount(1));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "more than half is in use";
}

TEST_F(FabricMemoryTest, AnAgentThatDoesNotWelcomeIsAnError) {
  EXPECT_EQ(connectTo(NoticeKind::kRefused, ErrorCode::kPermission), ErrorCode::kPermission);
  EXPECT_EQ(connectTo(NoticeKind::kKept), ErrorCode::kCorrupt);
  EXPECT_FALSE(growing());
  EXPECT_FALSE(core_.tiers.moreMayCome());
}

TEST_F(FabricMemoryTest, AsksOnceAndTakesWhatComes) {
  connect();
  sayMemoryIsShort();
  tend();
  const Request ask = expect(RequestKind::kAsk);
  EXPECT_EQ(ask.size, Bytes(256 * kMiB));
  tend();
  expectSilence();
  EXPECT_TRUE(growing());
  rung(core_.freed_memory);
  give(7, Bytes(256 * kMiB), ask.tag);
  ASSERT_NE(core_.tiers.direct(1), nullptr);
  EXPECT_EQ(core_.tiers.tier(1).capacity(), Bytes(256 * kMiB));
  EXPECT_FALSE(growing());
  EXPECT_TRUE(rung(core_.freed_memory)) << "who waited looks anew";
  expectSilence();
}

TEST_F(FabricMemoryTest, AsksForNoMoreThanItMay) {
  connect(Bytes(40 * kMiB));
  sayMemoryIsShort();
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(40 * kMiB));
  give(7, Bytes(40 * kMiB));
  tendAfter(kSecond * 5);
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, StepsFollowWhatThereIs) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(32 * kMiB));
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB)) << "64 MiB are to be free";
}

class FabricMemoryGrowth : public FabricMemoryTest, public testing::WithParamInterface<uint64_t> {};

TEST_P(FabricMemoryGrowth, MoreIsAskedForWhenLittleIsFree) {
  const uint64_t mib = GetParam();
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(mib * kMiB));
  sayMemoryIsShort(false);
  hold(Bytes((mib - std::max<uint64_t>(64, mib / 8)) * kMiB));
  tend();
  expectSilence();
  EXPECT_FALSE(growing());
  hold(Bytes(kGranuleSize));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(mib * kMiB)) << "as much as there is";
  tend();
  EXPECT_TRUE(growing());
}

INSTANTIATE_TEST_SUITE_P(Mebibytes, FabricMemoryGrowth, testing::Values(256, 1024));

TEST_F(FabricMemoryTest, WhatIsNeededAtOnceIsAskedForInAPause) {
  begin();
  hold(Bytes(200 * kMiB));
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tendAfter(Nanoseconds(1));
  expectSilence();
  EXPECT_EQ(errors(), 0u) << "nobody waits for it";
  hold(Bytes(54 * kMiB));
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tend();
  expectSilence();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(FabricMemoryTest, WhatIsToLeaveARegionNeedsRoomInOthers) {
  begin();
  sayMemoryIsShort(false);
  give(8, Bytes(256 * kMiB));
  const FrameRun held = hold(Bytes(192 * kMiB));
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kLeft);
  expectSilence();  // 64 MiB would still be free
  core_.tiers.tier(1).table().release(held);
  hold(Bytes(194 * kMiB));
  tend();
  EXPECT_EQ(expect(RequestKind::kAsk).size, Bytes(256 * kMiB));
}

TEST_F(FabricMemoryTest, RefusedItAsksForLessAndThenPauses) {
  connect();
  sayMemoryIsShort();
  for (const Nanoseconds pause : {kSecond, kSecond * 2, kSecond * 4}) {
    tend();
    for (const uint64_t mib : {256, 128, 64, 32}) {
      const Request ask = expect(RequestKind::kAsk);
      EXPECT_EQ(ask.size, Bytes(mib * kMiB));
      EXPECT_TRUE(growing());
      refuse(ask, ErrorCode::kNoSpace);
      tend();
    }
    expectSilence();
    EXPECT_FALSE(growing()) << "nobody waits for it";
    tendAfter(pause - Nanoseconds(1));
    expectSilence();
    clock_.advance(Nanoseconds(1));
  }
  EXPECT_EQ(errors(), 1u) << "it is said once";
}

TEST_F(FabricMemoryTest, PausesAreShortAgainOnceARegionCame) {
  connect();
  sayMemoryIsShort();
  const auto refuseAndWait = [&](Nanoseconds pause) {
    tend();
    refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
    tend();
    tendAfter(pause - Nanoseconds(1));
    expectSilence();
    clock_.advance(Nanoseconds(1));
  };
  refuseAndWait(kSecond);
  refuseAndWait(kSecond * 2);
  tend();
  expect(RequestKind::kAsk);
  give(7, Bytes(256 * kMiB));
  hold(Bytes(250 * kMiB));
  refuseAndWait(kSecond);
  tend();
  expect(RequestKind::kAsk);
}

TEST_F(FabricMemoryTest, RefusedForAnotherReasonItPausesAtOnce) {
  connect();
  sayMemoryIsShort();
  tend();
  refuse(expect(RequestKind::kAsk), ErrorCode::kPermission);
  tend();
  expectSilence();
  EXPECT_FALSE(growing());
}

TEST_F(FabricMemoryTest, WhatCannotBeUsedGoesBack) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd pipe(pipe_ends[0]), other(pipe_ends[1]);
  say(NoticeKind::kRegion, 7, Bytes(32 * kMiB), 1, {}, pipe.get());
  tend();
  EXPECT_EQ(errors(), 1u);
  for (int i = 0; i < 4; ++i) tend();
  EXPECT_EQ(expect(RequestKind::kReturn).region, 7u);
  expectSilence();
  EXPECT_EQ(core_.tiers.find(1), nullptr);
}

TEST_F(FabricMemoryTest, MoreRegionsThanThereAreTiersGoBack) {
  connect(Bytes(kPageSize));
  for (uint64_t i = 0; i < TierSet::kMost; ++i) give(100 + i, Bytes(2 * kGranuleSize));
  EXPECT_TRUE(core_.tiers.full());
  give(7, Bytes(2 * kGranuleSize));
  const Request back = expect(RequestKind::kReturn);
  EXPECT_EQ(back.region, 7u);
}

TEST_F(FabricMemoryTest, AnAnswerThatIsLateIsTakenWhenItComes) {
  connect();
  sayMemoryIsShort();
  tend();
  expect(RequestKind::kAsk);
  tendAfter(core_.options.remote_timeout);
  EXPECT_TRUE(growing());
  tendAfter(Nanoseconds(1));
  EXPECT_FALSE(growing());
  expectSilence();
  give(7, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr);
  expectSilence();
}

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
  tendAfter(kSecond);
  EXPECT_EQ(core_.tiers.find(1), nullptr);
}

TEST_F(FabricMemoryTest, AResumedRegionTakesPagesAgain) {
  begin();
  Tier& tier = core_.tiers.tier(1);
  ASSERT_TRUE(tier.table().allocate(PageCount(1)));
  say(NoticeKind::kDrain, 7);
  tend();
  say(NoticeKind::kResume, 7);
  tend();
  EXPECT_FALSE(tier.closed());
  tendAfter(kSecond);
  EXPECT_FALSE(tier.closed());
  EXPECT_EQ(core_.tiers.find(1), &tier);
}

TEST_F(FabricMemoryTest, WhatIsLeftIsReportedUntilItIsSaidToBeStuck) {
  beginWithAllThatMayBe();
  hold(Bytes(2 * kGranuleSize));
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

// ---- The agent comes and goes.

TEST_F(FabricMemoryTest, WithoutTheAgentRegionsStayAndAreReclaimed) {
  begin();
  agent_.reset(-1);
  tend();
  EXPECT_EQ(memory_->fd(), -1);
  EXPECT_EQ(errors(), 1u);
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  tendAfter(kSecond - Nanoseconds(1));
  EXPECT_EQ(memory_->fd(), -1);
  tendAfter(Nanoseconds(1));
  EXPECT_GE(memory_->fd(), 0);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  EXPECT_EQ(reclaim.region, 7u);
  expect(RequestKind::kAll);
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), reclaim.tag);
  tend();
  EXPECT_FALSE(core_.tiers.tier(1).closed());
  expectSilence();
}

TEST_F(FabricMemoryTest, AForkedChildConnectsByItselfAndReclaimsWhatItHas) {
  begin();
  sayMemoryIsShort(false);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  EXPECT_EQ(memory_->fd(), -1);
  tendAfter(Nanoseconds(99'999'999));
  EXPECT_EQ(memory_->fd(), -1) << "most children call exec at once";
  tendAfter(Nanoseconds(1));
  ASSERT_GE(memory_->fd(), 0);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  EXPECT_EQ(reclaim.region, 7u);
  expect(RequestKind::kAll);
  char byte;
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), -1) << "it keeps its parent's connection";
  say(NoticeKind::kKept, 7, Bytes(256 * kMiB), reclaim.tag);
  tend();
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), 0) << "until it has one itself";
}

TEST_F(FabricMemoryTest, AChildWhoseRegionIsLostNeedsItsParentsConnectionNoMore) {
  begin();
  sayMemoryIsShort(false);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  tendAfter(kSecond);
  accept();
  const Request reclaim = expect(RequestKind::kReclaim);
  expect(RequestKind::kAll);
  say(NoticeKind::kRefused, 99, Bytes(), reclaim.tag, ErrorCode::kLost);  // of no region here
  tend();
  char byte;
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), -1);
  refuse(reclaim, ErrorCode::kLost);
  tend();
  EXPECT_EQ(recv(parents.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(FabricMemoryTest, WhatWasOnItsWayBackAtAForkIsNotTheChilds) {
  begin();
  say(NoticeKind::kDrain, 7);
  tend();
  expect(RequestKind::kAsk);
  EXPECT_EQ(retiring(), 2u);
  const UniqueFd parents = std::move(agent_);
  memory_->forkedInChild();
  EXPECT_EQ(retiring(), 0u);
  tendAfter(kSecond);
  accept();
  expect(RequestKind::kAll);
  expect(RequestKind::kAsk);
  give(8, Bytes(256 * kMiB));
  EXPECT_NE(core_.tiers.direct(1), nullptr) << "its number is free";
}

TEST_F(FabricMemoryTest, WhatCannotBeReclaimedIsLost) {
  for (const ErrorCode error : {ErrorCode::kInternal, ErrorCode::kLost}) {
    if (memory_ == nullptr) begin();
    agent_.reset(-1);
    tend();
    tendAfter(kSecond);
    accept();
    const Request reclaim = expect(RequestKind::kReclaim);
    expect(RequestKind::kAll);
    refuse(reclaim, error);
    tend();
    EXPECT_EQ(core_.tiers.find(1) == nullptr, error == ErrorCode::kLost);
  }
}

}  // namespace
}  // namespace tidepool
