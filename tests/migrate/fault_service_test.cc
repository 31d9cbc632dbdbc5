// SPDX-License-Identifier: Apache-2.0
// The fault service's protocol, a turn of its loop at a time: what answers a touch of a page that
// is empty or on its way out, and what else it is woken for. Reads: fault_fetch_test.cc,
// fault_prefetch_test.cc.
#include "runtime/migrate/fault/fault_service.h"

#include <sched.h>
#include <sys/syscall.h>

#include <thread>

#include "runtime/tier/direct_file_tier.h"
#include "tests/migrate/fault_service_fixture.h"

namespace tidepool {
namespace {

// ---- Pages that were never touched.

class Fresh : public FaultServiceTest {};

TEST_F(Fresh, AFirstTouchFillsTheBlockAroundIt) {
  const PageIndex first = allocate();
  ask(first + 20);
  EXPECT_FALSE(waits(first + 20));
  expectFresh(first + 16, 16);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 16u);
  EXPECT_EQ(held(), 16u);
  EXPECT_EQ(core_.stats->faults_missing.load(), 1u);
  EXPECT_EQ(answered(), 1u);
  MutexLock lock(policy_->mutex());
  EXPECT_EQ(policy_->chooser().stats().faults, 0u) << "that is for what comes from far memory";
}

TEST_F(Fresh, ATouchThatGoesOnFillsAsMuchAgain) {
  const PageIndex first = allocate();
  ask(first);
  ask(first + 16);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 32u);
  ask(first + 32);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 64u);
  ask(first + 64);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 128u);
  EXPECT_EQ(held(), 128u);
}

TEST_F(Fresh, ATouchBehindAFullGranuleFillsTheNext) {
  const PageIndex first = allocate(2);
  makeLocal(first, 512);
  ask(first + 512);
  expectFresh(first + 512, 512);
  EXPECT_EQ(held(), 1024u);
}

TEST_F(Fresh, ATouchBehindAGranuleThatIsNotFullFillsABlock) {
  const PageIndex first = allocate(2);
  makeLocal(first, 511);
  ask(first + 512);
  EXPECT_EQ(countIn(PageState::kLocal, first + 512, 512), 16u);
}

TEST_F(Fresh, OnlyWhatMayBeAccessedAlikeIsFilled) {
  const PageIndex first = allocate();
  ASSERT_TRUE(ranges_->protect(addressOf(first + 4), Bytes(4 * kPageSize), PROT_NONE));
  ask(first + 1);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 4u);
  ask(first + 9);
  EXPECT_EQ(countIn(PageState::kLocal, first + 8, 504), 16u) << "from the page behind them on";
  EXPECT_EQ(state(first + 8), PageState::kLocal);
}

TEST_F(Fresh, PagesThatAreThereEndTheRun) {
  const PageIndex first = allocate();
  makeLocal(first + 3, 1);
  ask(first + 5);
  EXPECT_EQ(countIn(PageState::kLocal, first, 16), 2u) << "the run before that does not reach it";
  expectFresh(first + 5, 1);
  ask(first + 1);
  EXPECT_EQ(countIn(PageState::kLocal, first, 16), 5u);
}

TEST_F(Fresh, ARunBeginsBehindPagesThatAreThere) {
  const PageIndex first = allocate();
  makeLocal(first, 2);
  ask(first + 5);
  EXPECT_EQ(countIn(PageState::kLocal, first, 512), 18u);
  EXPECT_EQ(state(first + 17), PageState::kLocal);
}

TEST_F(Fresh, WithLittleRoomOnePageIsFilled) {
  const PageIndex first = allocate();
  setLimit(15);
  ask(first);
  EXPECT_EQ(held(), 1u);
  expectFresh(first, 1);
  EXPECT_EQ(state(first + 1), PageState::kEmpty);
}

TEST_F(Fresh, WithoutRoomATouchWaitsUntilThereIsSome) {
  const PageIndex first = allocate();
  setLimit(0);
  ask(first);
  EXPECT_TRUE(waits(first));
  EXPECT_TRUE(faultsWait());
  EXPECT_TRUE(rung(core_.need_memory));
  EXPECT_EQ(answered(), 0u);
  turn();
  EXPECT_TRUE(waits(first));
  EXPECT_TRUE(rung(core_.need_memory)) << "as long as somebody waits";
  setLimit(1);
  core_.freed_memory.ring();
  turn();
  expectFresh(first, 1);
  EXPECT_FALSE(faultsWait());
  EXPECT_FALSE(rung(core_.need_memory));
  EXPECT_FALSE(rung(core_.freed_memory)) << "it was heard";
  EXPECT_EQ(answered(), 1u);
}

TEST_F(Fresh, TheLatencyCountsFromTheFirstTry) {
  const PageIndex first = allocate();
  setLimit(0);
  ask(first);
  clock_.advance(Nanoseconds(1'000'000));
  setLimit(1);
  turn();
  EXPECT_GE(core_.stats->fault_latency.quantile(1), Nanoseconds(900'000));
}

TEST_F(Fresh, WhereNoRoomWillComeTheBudgetIsExceeded) {
  const PageIndex first = allocate();
  setLimit(0);
  RoomState::Supply(core_.room).setFarExhausted(true);
  ask(first);
  expectFresh(first, 1);
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(errors(), 0u) << "who found far memory exhausted has said so";
  RoomState::Supply(core_.room).setFarExhausted(false);
  RoomState::Supply(core_.room).setNothingLeaves(true);
  ask(first + 1);
  expectFresh(first + 1, 1);
  EXPECT_EQ(errors(), 0u) << "the tier has room";
  RoomState::Supply(core_.room).setNothingLeaves(false);
  ask(first + 2);
  EXPECT_TRUE(waits(first + 2));
  core_.parking.request(Parking::Upto::kMigrator);
  turn();
  expectFresh(first + 2, 1);
  core_.parking.resume();
}

TEST_F(Fresh, ThatTheBudgetIsExceededIsSaidOnce) {
  const PageIndex first = allocate();
  ASSERT_TRUE(tier_->allocate(PageCount(2048 - 512)));
  setLimit(0);
  RoomState::Supply(core_.room).setNothingLeaves(true);
  ask(first);
  EXPECT_EQ(errors(), 0u) << "there is room for a granule";
  ASSERT_TRUE(tier_->allocate(PageCount(1)));
  ask(first + 1);
  EXPECT_EQ(errors(), 1u);
  EXPECT_TRUE(errorSays("far memory is full"));
  ask(first + 2);
  EXPECT_EQ(errors(), 1u);
}

TEST_F(Fresh, WithoutAnyTierTheBudgetIsExceeded) {
  auto tier = core_.tiers.remove(1);
  core_.tiers.free(1);
  const PageIndex first = allocate();
  setLimit(0);
  ask(first);
  expectFresh(first, 1);
  EXPECT_EQ(errors(), 1u);
}

TEST_F(Fresh, AnotherTryFollowsWhenTheAddressSpaceChanges) {
  const PageIndex first = allocate();
  kernel_.fail(Call::kCopy, 1, PortOutcome::kRetry);
  kernel_.fail(Call::kCopy, 2, PortOutcome::kRetry);
  ask(first);
  expectFresh(first, 16);
  EXPECT_EQ(held(), 16u);
}

TEST_F(Fresh, ARunThatEndsEarlyHasWhatItReached) {
  const PageIndex first = allocate();
  kernel_.fail(Call::kCopy, 1, PortOutcome::kRetry, PageCount(3));
  ask(first + 2);
  expectFresh(first, 3);
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(state(first + 3), PageState::kEmpty);
  EXPECT_EQ(kernel_.calls(Call::kCopy), 1u);
}

TEST_F(Fresh, ARunThatDoesNotReachThePageIsFollowedByThatPage) {
  const PageIndex first = allocate();
  kernel_.fail(Call::kCopy, 1, PortOutcome::kInvalid, PageCount(2));
  ask(first + 5);
  expectFresh(first, 2);
  expectFresh(first + 5, 1);
  EXPECT_EQ(state(first + 2), PageState::kEmpty);
  EXPECT_EQ(held(), 3u);
}

TEST_F(Fresh, AThreadInARangeThatWasReleasedGoesOnToItsEnd) {
  const PageIndex first = allocate();
  touch(first + 5);
  ASSERT_TRUE(kernel_.mapNothing(addressOf(first), Bytes(kGranuleSize)));
  turn();
  EXPECT_FALSE(waits(first + 5));
  EXPECT_EQ(countIn(PageState::kEmpty, first, 512), 512u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(Fresh, OnePageOfSuchARangeIsTriedOnce) {
  const PageIndex first = allocate();
  touch(first);
  setLimit(1);
  ASSERT_TRUE(kernel_.mapNothing(addressOf(first), Bytes(kGranuleSize)));
  turn();
  EXPECT_FALSE(waits(first));
  EXPECT_EQ(kernel_.calls(Call::kCopy), 1u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(Fresh, GranulesThatAreWantedInADirectTierGoThere) {
  auto direct = DirectFileTier::createEmulated(Bytes(16 * kMiB));
  ASSERT_TRUE(direct);
  core_.tiers.add(std::unique_ptr<DirectTier>(std::move(*direct)));
  const PageIndex first = allocate(4);
  core_.space->placements().set(granuleOf(first), Placement::in(2));
  ask(first + 3);
  EXPECT_EQ(state(first + 3), PageState::kDirect);
  EXPECT_EQ(held(), 0u);
  // So do those that will not fit, but not if they are to be local.
  setLimit(527);
  core_.space->placements().set(granuleOf(first + 512), Placement::local());
  ask(first + 512);
  EXPECT_EQ(state(first + 512), PageState::kLocal);
  EXPECT_EQ(held(), 16u);
  ask(first + 1024);
  EXPECT_EQ(state(first + 1024), PageState::kDirect);
  setLimit(16 + 528);
  ask(first + 1536);
  EXPECT_EQ(state(first + 1536), PageState::kLocal) << "it fits";
  // What is there in part stays beside it as long as there is room, and goes when there is none.
  setLimit(32 + 1);
  ask(first + 1600);
  EXPECT_EQ(state(first + 1600), PageState::kLocal);
  ask(first + 1700);
  EXPECT_EQ(state(first + 1700), PageState::kDirect);
}

// ---- Pages on their way out, and pages that need nothing any more.

TEST_F(FaultServiceTest, APageOnItsWayOutIsTakenBack) {
  const PageIndex first = allocate();
  makeLocal(first, 1);
  makeEvicting(first, 5);
  setLimit(1);
  ask(first);
  expectLocal(first, first.value());
  EXPECT_EQ(held(), 2u) << "whatever the limit: it is twice there until the slot is freed";
  EXPECT_EQ(kernel_.load(staging_->slotAddress(5)), first.value()) << "the write goes on";
  EXPECT_EQ(core_.stats->rescues.load(), 1u);
  EXPECT_EQ(answered(), 1u);
  MutexLock lock(policy_->mutex());
  EXPECT_EQ(policy_->chooser().stats().rescues, 1u);
}

TEST_F(FaultServiceTest, ItIsTriedAgainWhenTheAddressSpaceChanges) {
  const PageIndex first = allocate();
  makeLocal(first, 1);
  makeEvicting(first, 5);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kRetry);
  ask(first);
  expectLocal(first, first.value());
}

TEST_F(FaultServiceTest, APageOnItsWayOutOfAReleasedRangeIsLeft) {
  const PageIndex first = allocate();
  makeLocal(first, 1);
  makeEvicting(first, 5);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kInvalid);
  ask(first);
  EXPECT_FALSE(waits(first));
  EXPECT_EQ(state(first), PageState::kEvicting);
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(core_.stats->rescues.load(), 0u);
}

TEST_F(FaultServiceTest, ThePageMayHaveComeMeanwhile) {
  const PageIndex first = allocate();
  touch(first);
  makeLocal(first, 1);
  turn();
  expectLocal(first, first.value());
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(answered(), 1u);
}

TEST_F(FaultServiceTest, SeveralThreadsAreServedInOneTurn) {
  const PageIndex first = allocate();
  for (uint64_t i = 0; i < 70; ++i) touch(first + i * 7);
  turn();
  EXPECT_EQ(core_.stats->faults_missing.load(), 64u) << "as many as are read at a time";
  turn();
  EXPECT_EQ(core_.stats->faults_missing.load(), 70u);
  for (uint64_t i = 0; i < 70; ++i) EXPECT_FALSE(waits(first + i * 7));
}

TEST_F(FaultServiceTest, AStagingSlotThatTheKernelFillsHasZeros) {
  EXPECT_FALSE(kernel_.touch(staging_->slotAddress(3)));
  turn();
  EXPECT_FALSE(kernel_.waits(staging_->slotAddress(3)));
  EXPECT_EQ(kernel_.load(staging_->slotAddress(3)), 0u);
  EXPECT_EQ(held(), 0u);
}

// ---- Everything else it is woken for.

TEST_F(FaultServiceTest, WritersThatMetAClosedPageGoOn) {
  FakeKernel direct;
  core_.barrier = std::make_unique<FakePort>(direct);
  makeService();
  const PageIndex first = allocate();
  EXPECT_FALSE(direct.touch(addressOf(first + 3)));
  EXPECT_FALSE(direct.touch(addressOf(first + 9)));
  ASSERT_TRUE(tier_->allocate(PageCount(2048)));
  turn();
  EXPECT_EQ(errors(), 0u) << "nothing was made local for it";
  EXPECT_FALSE(direct.waits(addressOf(first + 3)));
  EXPECT_FALSE(direct.waits(addressOf(first + 9)));
  EXPECT_EQ(core_.stats->faults_write_protect.load(), 2u);
  EXPECT_EQ(kernel_.waitedFor().size(), 3u);
  EXPECT_EQ(kernel_.waitedFor()[2].fd, core_.barrier->fd());
  EXPECT_EQ(kernel_.waitedFor()[2].events, POLLIN);
}

/// A page in place, in a direct tier with a write barrier.
class Barrier : public FaultServiceTest {
 protected:
  void SetUp() override {
    FaultServiceTest::SetUp();
    auto tier = DirectFileTier::createEmulated(Bytes(2 * kGranuleSize));
    ASSERT_TRUE(tier);
    number_ = core_.tiers.add(std::unique_ptr<DirectTier>(std::move(*tier)));
    core_.barrier = std::make_unique<FakePort>(direct_);
    makeService();
    page_ = allocate() + 3;
    const auto home = core_.tiers.tier(number_).table().allocateWhole(PageCount(1));
    ASSERT_TRUE(home);
    change(page_, PageWord(),
           PageWord(PageState::kDirect, 0, number_, home->first.value() * kPagesPerGranule + 3));
  }
  void TearDown() override {
    if (state(page_) == PageState::kDirect) change(page_, word(page_), PageWord());
  }
  bool waits() const { return direct_.waits(addressOf(page_)); }
  uint64_t calls(Call call) const { return direct_.calls(call); }

  FakeKernel direct_;
  uint8_t number_ = 0;
  PageIndex page_;
};

TEST_F(Barrier, WhoMeetsAPageThatIsOpenByNowIsLetIn) {
  direct_.touch(addressOf(page_));
  turn();
  EXPECT_FALSE(waits());
  EXPECT_EQ(calls(Call::kDisarm), 1u);
  EXPECT_EQ(calls(Call::kWriteProtect), 0u);
  EXPECT_EQ(core_.stats->faults_write_protect.load(), 1u);
}

TEST_F(Barrier, AClosedPageIsTheForksOnlyIfThereWasOne) {
  direct_.meetClosed(addressOf(page_));
  turn();
  EXPECT_FALSE(waits()) << "it looks again";
  EXPECT_EQ(calls(Call::kDisarm) + calls(Call::kWriteProtect), 0u);
  core_.fork.setForked();
  direct_.meetClosed(addressOf(page_));
  turn();
  EXPECT_FALSE(waits());
  EXPECT_EQ(calls(Call::kDisarm), 0u);
  EXPECT_EQ(calls(Call::kWriteProtect), 1u) << "nobody else has it: it is opened";
  EXPECT_EQ(errors(), 0u);
}

TEST_F(Barrier, WhileItsGranuleIsClosingAWriterWaits) {
  size_t place = 0;
  {
    const GranuleLock granule(*core_.space, granuleOf(page_));
    place = mover_->closing.add(granule);
  }
  direct_.meetClosed(addressOf(page_));
  turn();
  EXPECT_TRUE(waits());
  EXPECT_EQ(calls(Call::kDisarm) + calls(Call::kWriteProtect), 0u);
  {
    const GranuleLock granule(*core_.space, granuleOf(page_));
    EXPECT_FALSE(mover_->closing.end(granule, place));
  }
  direct_.meetClosed(addressOf(page_));
  turn();
  EXPECT_FALSE(waits());
}

TEST_F(Barrier, WhileTheTierIsOutOfReachAWriterWaits) {
  core_.tiers.tier(number_).suspend();
  direct_.touch(addressOf(page_));
  turn();
  EXPECT_TRUE(waits());
  core_.tiers.tier(number_).resume();
  direct_.touch(addressOf(page_));
  turn();
  EXPECT_FALSE(waits());
}

TEST_F(FaultServiceTest, FollowsTheThreadThatItServesToItsProcessor) {
  makeService();
  ASSERT_TRUE(waker_->start());
  waker_->awaitBegin();
  cpu_set_t before, now;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &before)) ++cpu;
  // The waker's thread says when it can be bound.
  while (waker_->follow(cpu), waker_->bound() != cpu) sched_yield();
  waker_->follow(-1);
  const PageIndex first = allocate();
  // This thread plays both parts. It is believed to stay when it is seen in one place twice.
  while (core_.services.faultProcessor() < 0) {
    kernel_.touch(addressOf(first), static_cast<int>(syscall(SYS_gettid)));
    turn();
    discard(first, 16);
  }
  ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
  EXPECT_EQ(CPU_COUNT(&now), 1);
  EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(core_.services.faultProcessor()), &now));
  EXPECT_EQ(waker_->bound(), core_.services.faultProcessor());
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST_F(FaultServiceTest, ATierThatIsToGoIsLetGoOf) {
  FakeTier& second = addTier(PageCount(8), "second");
  makeService();
  turn();
  EXPECT_FALSE(rung(core_.need_memory));
  core_.retirement.begin(1u << 2);
  turn();
  EXPECT_EQ(second.channels, 0u);
  EXPECT_EQ(tier_->channels, 1u);
  EXPECT_EQ(core_.retirement.stage(1u << 2), TierRetirement::Stage::kLetGo);
  EXPECT_TRUE(rung(core_.need_memory));
  turn();
  EXPECT_FALSE(rung(core_.need_memory));
  core_.retirement.end(1u << 2);
  turn();
  EXPECT_EQ(core_.retirement.stage(1u << 2), TierRetirement::Stage::kNone)
      << "its number may be another's";
  EXPECT_EQ(tier_->channels, 1u);
}

TEST_F(FaultServiceTest, WaitsForFaultsForRoomAndForReadsUpToTheFirstDeadline) {
  FakeTier& second = addTier(PageCount(64), "second");
  tier_->deadline = Nanoseconds(3'000'000);
  second.deadline = Nanoseconds(2'000'000);
  const PageIndex first = farPages(1);
  makeFar(first + 100, 1, 2);
  turn();
  auto waits = kernel_.waitedFor();
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(waits[0].fd, core_.port->fd());
  EXPECT_EQ(waits[0].events, POLLIN);
  EXPECT_EQ(waits[1].fd, core_.freed_memory.fd());
  EXPECT_EQ(waits[1].events, POLLIN);
  EXPECT_FALSE(kernel_.waitedUpTo()) << "nothing is under way";
  EXPECT_EQ(tier_->flushes, 0u) << "nor is there anything to send";
  ask(first);
  turn();
  waits = kernel_.waitedFor();
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_EQ(waits[2].fd, tier_->requests()[0].channel->fd());
  EXPECT_EQ(waits[2].events, POLLIN);
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(3'000'000));
  ask(first + 100);
  turn();
  EXPECT_EQ(kernel_.waitedFor().size(), 4u);
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(2'000'000));
  second.deadline = Nanoseconds(4'000'000);
  turn();
  EXPECT_EQ(kernel_.waitedUpTo(), Nanoseconds(3'000'000));
}

TEST_F(FaultServiceTest, OnItsWayToAStandstillItEndsWhatIsUnderWayAndBeginsNothing) {
  const PageIndex first = farPages(40);
  ask(first);
  core_.parking.request(Parking::Upto::kFaults);
  touch(first + 8);
  {
    MutexLock lock(policy_->mutex());
    ASSERT_TRUE(policy_->willNeed().push({first + 20, PageCount(4)}));
  }
  turn();
  EXPECT_EQ(kernel_.waitedFor()[0].events, 0);
  EXPECT_EQ(state(first + 8), PageState::kFar);
  EXPECT_EQ(state(first + 20), PageState::kFar);
  arrive();
  expectLocal(first, first.value());
  EXPECT_EQ(state(first + 8), PageState::kFar);
  core_.parking.resume();
  turn();
  EXPECT_EQ(state(first + 8), PageState::kFetching);
  EXPECT_EQ(state(first + 20), PageState::kFetching);
}

TEST_F(FaultServiceTest, ItsThreadStandsStillGoesOnAndStops) {
  kernel_.sleeps = true;
  makeService();
  const PageIndex first = allocate();
  faults_->stop();
  EXPECT_FALSE(core_.services.stopping()) << "there was nothing to stop";
  ASSERT_TRUE(faults_->start());
  faults_->awaitBegin();
  core_.parking.request(Parking::Upto::kFaults);
  core_.freed_memory.ring();
  {
    // The migrator stands still as well.
    std::thread migrator([this] { core_.parking.park(Parking::Upto::kMigrator); });
    core_.parking.await();
    touch(first);
    EXPECT_EQ(state(first), PageState::kEmpty);
    core_.parking.resume();
    migrator.join();
  }
  core_.parking.await();
  while (waits(first)) std::this_thread::yield();
  expectLocal(first, 0);
  faults_.reset();
  EXPECT_TRUE(core_.services.stopping()) << "its end stops the thread";
}

}  // namespace
}  // namespace tidepool
