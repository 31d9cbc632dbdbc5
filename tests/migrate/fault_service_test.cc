// SPDX-License-Identifier: Apache-2.0
// The fault service's protocol, a turn of its loop at a time: what answers a touch of a page in
// each state, and what happens when memory, reads in flight or the far tier run out in between.
#include "runtime/migrate/fault/fault_service.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <thread>

#include "runtime/tier/direct_file_tier.h"
#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

constexpr uint64_t kReads = 64;  // that can be in flight

class FaultServiceTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
  }
  void makeService() {
    waker_ = std::make_unique<Waker>(*core_.port);
    auto faults = FaultService::create(core_, *staging_, *policy_, *mover_, *waker_);
    ASSERT_TRUE(faults);
    faults_ = std::move(*faults);
  }
  void turn() {
    if (faults_ == nullptr) makeService();
    faults_->turn();
  }
  /// A thread touches the page, which is not there.
  void touch(PageIndex page) { ASSERT_FALSE(kernel_.touch(addressOf(page))); }
  void ask(PageIndex page) {
    touch(page);
    turn();
  }
  bool waits(PageIndex page) const { return kernel_.waits(addressOf(page)); }
  /// Pages [first, first + count) are far; none of them is beside another in the tier.
  PageIndex farPages(uint64_t count) {
    const PageIndex first = allocate();
    makeFar(first, count);
    return first;
  }
  /// One page to which nothing is near.
  PageIndex farPage() { return farPages(1); }
  /// All reads end, and what they bring is installed.
  void arrive(ErrorCode error = ErrorCode{}) {
    tier_->endAll(error);
    turn();
  }
  void expectLocal(PageIndex page, uint64_t value, uint8_t flags = 0) {
    EXPECT_EQ(word(page), PageWord(PageState::kLocal, flags, 0, 0)) << page.value();
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), value);
    EXPECT_FALSE(waits(page));
  }
  void expectFresh(PageIndex first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) expectLocal(first + i, 0);
  }
  /// So many of the pages from `first` on are in that state.
  uint64_t countIn(PageState wanted, PageIndex first, uint64_t count) const {
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; ++i) found += state(first + i) == wanted ? 1 : 0;
    return found;
  }
  uint64_t answered() const {
    uint64_t sum = 0;
    for (const StatCounter& bucket : core_.stats->fault_latency.buckets) sum += bucket.load();
    return sum;
  }
  bool faultsWait() const { return core_.room.faultsWait(); }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  bool errorSays(const char* text) const {
    return std::string(core_.stats->errors[0]).find(text) != std::string::npos;
  }
  /// A page of which a copy is in a staging slot, on its way out.
  void makeEvicting(PageIndex page, uint64_t slot) {
    const PageWord evicting(PageState::kEvicting, 0, 0, slot);
    change(page, word(page), evicting);
    ASSERT_EQ(
        core_.port->move(staging_->slotAddress(slot), addressOf(page), Bytes(kPageSize), Wake::kNo)
            .outcome,
        PortOutcome::kDone);
  }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Waker> waker_;
  std::unique_ptr<FaultService> faults_;
};

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

// ---- Reads from far memory.

class Fetch : public FaultServiceTest {};

TEST_F(Fetch, AFarPageIsReadAndInstalled) {
  const PageIndex page = farPage();
  const PageWord far = word(page);
  ask(page);
  EXPECT_TRUE(waits(page));
  EXPECT_EQ(word(page), PageWord(PageState::kFetching, 0, 1, far.index()));
  ASSERT_EQ(tier_->requests().size(), 1u);
  EXPECT_FALSE(tier_->requests()[0].writes);
  EXPECT_EQ(tier_->requests()[0].run.first, far.frame());
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(1));
  EXPECT_GE(tier_->flushes, 1u);
  EXPECT_EQ(held(), 0u) << "room is taken when it arrives";
  turn();
  EXPECT_TRUE(waits(page));
  EXPECT_EQ(answered(), 0u);
  clock_.advance(Nanoseconds(1'000'000));
  arrive();
  expectLocal(page, page.value());
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(core_.stats->promotions.load(), 1u);
  EXPECT_EQ(core_.stats->promoted_bytes.load(), kPageSize);
  EXPECT_EQ(answered(), 1u);
  EXPECT_GE(core_.stats->fault_latency.quantile(1), Nanoseconds(900'000));
  EXPECT_FALSE(faultsWait());
}

TEST_F(Fetch, APageThatIsBeingReadIsNotReadAgain) {
  const PageIndex page = farPage();
  ask(page);
  ask(page);
  EXPECT_EQ(tier_->requests().size(), 1u);
  arrive();
  expectLocal(page, page.value());
  EXPECT_EQ(answered(), 1u);
}

TEST_F(Fetch, WithoutRoomThePageWaitsAndIsInstalledWhenThereIsSome) {
  const PageIndex page = farPage();
  setLimit(0);
  ask(page);
  EXPECT_FALSE(faultsWait());
  arrive();
  EXPECT_TRUE(waits(page));
  EXPECT_EQ(state(page), PageState::kFetching);
  EXPECT_TRUE(faultsWait());
  EXPECT_TRUE(rung(core_.need_memory));
  turn();
  EXPECT_TRUE(waits(page));
  EXPECT_TRUE(rung(core_.need_memory));
  setLimit(1);
  turn();
  expectLocal(page, page.value());
  EXPECT_FALSE(faultsWait());
  EXPECT_FALSE(rung(core_.need_memory));
}

TEST_F(Fetch, WhereNoRoomWillComeTheBudgetIsExceeded) {
  const PageIndex page = farPage();
  setLimit(0);
  RoomState::Supply(core_.room).setFarExhausted(true);
  ask(page);
  arrive();
  expectLocal(page, page.value());
  EXPECT_EQ(held(), 1u);
}

TEST_F(Fetch, WhoHasWaitedLongestIsFirst) {
  const PageIndex first = allocate(3);
  for (uint64_t i = 0; i < 3; ++i) makeFar(first + i * 512, 1);
  makeFar(first + 100, 1);
  setLimit(0);
  for (uint64_t i = 0; i < 3; ++i) ask(first + i * 512);
  arrive();
  ask(first + 200);  // fresh
  ask(first + 300);
  for (uint64_t i = 0; i < 3; ++i) {
    setLimit(i + 1);
    turn();
    EXPECT_EQ(waits(first), false);
    EXPECT_EQ(waits(first + 512), i < 1) << i;
    EXPECT_EQ(waits(first + 1024), i < 2) << i;
    EXPECT_TRUE(waits(first + 200));
    EXPECT_TRUE(faultsWait());
  }
  setLimit(4);
  turn();
  EXPECT_FALSE(waits(first + 200));
  EXPECT_TRUE(waits(first + 300));
  EXPECT_TRUE(faultsWait());
  setLimit(5);
  turn();
  EXPECT_FALSE(waits(first + 300));
  EXPECT_FALSE(faultsWait());
}

TEST_F(Fetch, APageThatIsDiscardedMeanwhileGivesItsFrameBack) {
  const PageIndex page = farPage();
  ask(page);
  discard(page);
  EXPECT_EQ(tier_->held(), 1u) << "the read's own";
  arrive();
  EXPECT_EQ(word(page), PageWord());
  EXPECT_FALSE(present(page));
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(core_.stats->promotions.load(), 0u);
}

TEST_F(Fetch, APageOfAReleasedRangeIsGone) {
  const PageIndex page = farPage();
  ask(page);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kInvalid);
  arrive();
  EXPECT_EQ(word(page), PageWord());
  EXPECT_FALSE(waits(page));
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(Fetch, WhatCannotBeReadIsLost) {
  const PageIndex first = farPages(2);
  ask(first);
  arrive(ErrorCode::kTimedOut);
  EXPECT_EQ(word(first), PageWord(PageState::kLost, 0, 0, 0));
  EXPECT_TRUE(kernel_.poisoned(addressOf(first)));
  EXPECT_FALSE(waits(first));
  EXPECT_EQ(tier_->held(), 1u);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(core_.stats->lost_pages.load(), 1u);
  EXPECT_EQ(errors(), 1u);
  EXPECT_EQ(answered(), 0u);
  ask(first + 1);
  arrive(ErrorCode::kTimedOut);
  EXPECT_EQ(core_.stats->lost_pages.load(), 2u);
  EXPECT_EQ(errors(), 1u) << "it is said once";
  ask(first);
  EXPECT_FALSE(waits(first));
  EXPECT_TRUE(kernel_.poisoned(addressOf(first)));
}

TEST_F(Fetch, ARequestThatIsRefusedIsLostAtOnce) {
  const PageIndex page = farPage();
  tier_->submits = 0;
  ask(page);
  EXPECT_EQ(state(page), PageState::kLost);
  EXPECT_FALSE(waits(page));
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(answered(), 1u);
  // Its slot is free again.
  tier_->submits = kReads;
  const PageIndex first = allocate();
  makeFar(first, 2 * kReads);
  for (uint64_t i = 0; i < kReads; ++i) touch(first + 2 * i);
  turn();
  turn();
  EXPECT_EQ(tier_->requests().size(), kReads);
}

TEST_F(Fetch, AChildOpensItsChannelWhenItNeedsIt) {
  core_.fork.setServedChild();
  const PageIndex first = farPages(20);
  makeService();
  EXPECT_EQ(tier_->channels, 0u);
  ask(first);
  EXPECT_EQ(tier_->channels, 1u);
  arrive();
  expectLocal(first, first.value());
}

TEST_F(Fetch, ATierThatCannotBeReachedLosesThePage) {
  core_.fork.setServedChild();
  tier_->opens = false;
  const PageIndex page = farPage();
  ask(page);
  EXPECT_EQ(state(page), PageState::kLost);
}

TEST_F(Fetch, AtTheStartEveryTierMustOpen) {
  tier_->opens = false;
  waker_ = std::make_unique<Waker>(*core_.port);
  EXPECT_FALSE(FaultService::create(core_, *staging_, *policy_, *mover_, *waker_));
  tier_->opens = true;
  makeService();
  EXPECT_EQ(tier_->channels, 1u);
}

TEST_F(Fetch, ADiscardedPageIsNotLostWithItsRead) {
  const PageIndex page = farPage();
  ask(page);
  discard(page);
  arrive(ErrorCode::kLost);
  EXPECT_EQ(core_.stats->lost_pages.load(), 0u);
  EXPECT_EQ(errors(), 0u);
  EXPECT_EQ(word(page), PageWord());
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(Fetch, MoreFaultsThanReadsWaitTheirTurnTheLongestFirst) {
  const PageIndex first = allocate();
  makeFar(first, 3 * (kReads + 3));
  for (uint64_t i = 0; i < kReads + 3; ++i) ask(first + 3 * i);
  ASSERT_EQ(tier_->requests().size(), kReads);
  EXPECT_FALSE(faultsWait()) << "nobody needs memory";
  tier_->end(1);
  turn();
  expectLocal(first, first.value());
  ASSERT_EQ(tier_->requests().size(), kReads);
  EXPECT_EQ(tier_->requests().back().run.first, word(first + 3 * kReads).frame());
  EXPECT_EQ(state(first + 3 * (kReads + 1)), PageState::kFar);
  const uint64_t flushes = tier_->flushes;
  tier_->end(2);
  turn();
  EXPECT_EQ(state(first + 3 * (kReads + 1)), PageState::kFetching);
  EXPECT_EQ(state(first + 3 * (kReads + 2)), PageState::kFetching);
  EXPECT_GT(tier_->flushes, flushes);
  arrive();
  for (uint64_t i = 0; i < kReads + 3; ++i) {
    EXPECT_EQ(state(first + 3 * i), PageState::kLocal);
    EXPECT_EQ(load(first + 3 * i), (first + 3 * i).value());
    EXPECT_FALSE(waits(first + 3 * i));
  }
  EXPECT_EQ(answered(), kReads + 3);
}

TEST_F(Fetch, AFaultWhoseTurnHasComeMayNeedMemory) {
  const PageIndex first = allocate();
  makeFar(first, 3 * (kReads + 1));
  for (uint64_t i = 0; i < kReads + 1; ++i) ask(first + 3 * i);
  // While it waits for a read the page is discarded, and room runs out.
  const PageIndex last = first + 3 * kReads;
  discard(last);
  setLimit(0);
  tier_->end(1, ErrorCode::kTimedOut);
  turn();
  EXPECT_TRUE(faultsWait());
  EXPECT_TRUE(rung(core_.need_memory));
}

// ---- Reads ahead of a stream.

class Ahead : public FaultServiceTest {
 protected:
  /// Three touches in a row, upwards: a stream.
  void stream(PageIndex first) {
    for (uint64_t i = 0; i < 3; ++i) {
      ask(first + i);
      if (i < 2) arrive();
    }
  }
  uint64_t prefetched() const { return core_.stats->prefetched_pages.load(); }
};

TEST_F(Ahead, AStreamIsReadAhead) {
  const PageIndex first = farPages(40);
  stream(first);
  ASSERT_EQ(tier_->requests().size(), 2u);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(1)) << "what is waited for goes first";
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(3));
  EXPECT_EQ(prefetched(), 3u);
  EXPECT_TRUE(word(first + 3).has(kFlagUnproven));
  arrive();
  EXPECT_TRUE(word(first + 2) == PageWord(PageState::kLocal, 0, 0, 0) ||
              word(first + 2).has(kFlagFarCopy));
  for (uint64_t i = 3; i < 6; ++i) {
    EXPECT_EQ(state(first + i), PageState::kLocal);
    EXPECT_TRUE(word(first + i).has(kFlagUnproven));
    EXPECT_EQ(load(first + i), (first + i).value());
  }
  EXPECT_EQ(state(first + 6), PageState::kFar);
  EXPECT_EQ(held(), 6u);
  EXPECT_EQ(answered(), 3u) << "nobody waited for those ahead";
  // The next fault is behind the window: it passed the pages of that, and doubles it.
  ask(first + 6);
  EXPECT_EQ(core_.stats->prefetch_hits.load(), 3u);
  EXPECT_EQ(prefetched(), 3u + 7);
}

TEST_F(Ahead, ADescentIsReadAheadTheNearestPagesFirst) {
  const PageIndex first = farPages(100);
  for (const uint64_t i : {90, 89}) {
    ask(first + i);
    arrive();
  }
  ask(first + 88);
  ASSERT_EQ(tier_->requests().size(), 2u);
  EXPECT_EQ(tier_->requests()[1].run.first, word(first + 85).frame());
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(3));
  arrive();
  ask(first + 84);
  arrive();
  ask(first + 76);
  arrive();
  ask(first + 60);
  // 31 pages in pieces of 16.
  ASSERT_EQ(tier_->requests().size(), 3u);
  EXPECT_EQ(tier_->requests()[1].run.first, word(first + 44).frame());
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(16));
  EXPECT_EQ(tier_->requests()[2].run.first, word(first + 29).frame());
  EXPECT_EQ(tier_->requests()[2].run.count, PageCount(15));
}

TEST_F(Ahead, NothingIsIfTheUserSaysSo) {
  core_.options.prefetch = false;
  const PageIndex first = farPages(40);
  stream(first);
  EXPECT_EQ(tier_->requests().size(), 1u);
  EXPECT_EQ(prefetched(), 0u);
}

TEST_F(Ahead, ATouchOfAPageThatIsReadAheadWaitsForThatRead) {
  const PageIndex first = farPages(40);
  stream(first);
  ask(first + 4);
  EXPECT_TRUE(waits(first + 4));
  arrive();
  EXPECT_FALSE(waits(first + 4));
  EXPECT_FALSE(word(first + 4).has(kFlagUnproven));
  EXPECT_TRUE(word(first + 3).has(kFlagUnproven));
  EXPECT_TRUE(word(first + 5).has(kFlagUnproven));
}

TEST_F(Ahead, SoDoTouchesOfItsFirstPageAndItsLast) {
  const PageIndex first = farPages(40);
  stream(first);
  ask(first + 3);
  ask(first + 5);
  arrive();
  EXPECT_FALSE(word(first + 3).has(kFlagUnproven));
  EXPECT_TRUE(word(first + 4).has(kFlagUnproven));
  EXPECT_FALSE(word(first + 5).has(kFlagUnproven));
}

TEST_F(Ahead, OnlyFarPagesAreReadInPiecesOfFramesInARow) {
  const PageIndex first = allocate();
  makeFar(first, 4);
  makeLocal(first + 4, 1);
  const auto hole = tier_->allocate(PageCount(1));
  ASSERT_TRUE(hole);
  makeFar(first + 5, 10);
  stream(first);
  ASSERT_EQ(tier_->requests().size(), 3u);
  EXPECT_EQ(tier_->requests()[1].run.first, word(first + 3).frame());
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(1));
  EXPECT_EQ(tier_->requests()[2].run.first, word(first + 5).frame());
  EXPECT_EQ(tier_->requests()[2].run.count, PageCount(1));
  EXPECT_EQ(state(first + 6), PageState::kFar);
  EXPECT_EQ(prefetched(), 2u);
}

TEST_F(Ahead, AReadStaysInItsGranule) {
  const PageIndex first = allocate(2);
  makeFar(first + 508, 40);
  stream(first + 508);
  ASSERT_EQ(tier_->requests().size(), 3u);
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(1));
  EXPECT_EQ(tier_->requests()[2].run.count, PageCount(2));
  arrive();
  EXPECT_EQ(load(first + 513), (first + 513).value());
}

TEST_F(Ahead, NothingIsReadBehindTheEndOfTheSpaceInUse) {
  const PageIndex first = allocate();
  makeFar(first + 505, 7);
  for (const uint64_t i : {507, 508}) {
    ask(first + i);
    arrive();
  }
  ask(first + 509);
  EXPECT_EQ(prefetched(), 2u);
}

TEST_F(Ahead, ReadsAheadTakeOnlyRoomThatIsThere) {
  const PageIndex first = farPages(64);
  setLimit(2 + 16);
  stream(first);
  EXPECT_EQ(prefetched(), 0u) << "what a read of a fault may need is left";
  arrive();
  setLimit(3 + 17);
  ask(first + 6);
  EXPECT_EQ(prefetched(), 7u);
  EXPECT_EQ(tier_->requests().back().run.count, PageCount(7));
}

TEST_F(Ahead, TheRoomIsCountedAsItIsPromised) {
  const PageIndex first = allocate();
  // Every other frame: each page is a read of its own.
  for (uint64_t i = 0; i < 20; ++i) {
    makeFar(first + i, 1);
    ASSERT_TRUE(tier_->allocate(PageCount(1)));
  }
  setLimit(2 + 18);
  stream(first);
  EXPECT_EQ(prefetched(), 2u) << "of three";
}

TEST_F(Ahead, TheLastReadIsLeftToFaults) {
  const PageIndex first = allocate();
  makeFar(first, 400);
  stream(first);
  arrive();
  // All but two slots are taken, by faults far apart.
  for (uint64_t i = 0; i < kReads - 2; ++i) ask(first + 20 + 3 * i);
  ASSERT_EQ(tier_->requests().size(), kReads - 2);
  const uint64_t before = prefetched();
  ask(first + 6);
  EXPECT_EQ(tier_->requests().size(), kReads - 1) << "the fault itself";
  EXPECT_EQ(prefetched(), before);
  ask(first + 399);
  EXPECT_EQ(tier_->requests().size(), kReads);
  EXPECT_EQ(state(first + 399), PageState::kFetching);
}

TEST_F(Ahead, TheLastButOneReadMayBeAhead) {
  const PageIndex first = allocate();
  makeFar(first, 400);
  stream(first);
  arrive();
  for (uint64_t i = 0; i < kReads - 3; ++i) ask(first + 20 + 3 * i);
  const uint64_t before = prefetched();
  ask(first + 6);
  EXPECT_EQ(tier_->requests().size(), kReads - 1);
  EXPECT_EQ(prefetched(), before + 7);
}

TEST_F(Ahead, AReadThatFailsLosesNothing) {
  const PageIndex first = farPages(40);
  stream(first);
  arrive(ErrorCode::kUnreachable);
  EXPECT_EQ(state(first + 2), PageState::kLost) << "somebody waited for it";
  EXPECT_EQ(countIn(PageState::kFar, first + 3, 37), 37u);
  EXPECT_EQ(core_.stats->lost_pages.load(), 1u);
}

TEST_F(Ahead, AReadThatFailsLosesWhatSomebodyWaitsForByNow) {
  const PageIndex first = farPages(40);
  stream(first);
  ask(first + 4);
  arrive(ErrorCode::kUnreachable);
  EXPECT_EQ(countIn(PageState::kLost, first + 2, 4), 4u);
  EXPECT_FALSE(waits(first + 4));
}

TEST_F(Ahead, AReadThatIsRefusedLeavesThePagesFar) {
  const PageIndex first = farPages(40);
  tier_->submits = 3;
  stream(first);
  EXPECT_EQ(tier_->requests().size(), 1u);
  EXPECT_EQ(countIn(PageState::kFar, first + 3, 37), 37u);
  EXPECT_EQ(prefetched(), 0u);
}

TEST_F(Ahead, WhatArrivesWithoutRoomStaysFar) {
  const PageIndex first = farPages(40);
  stream(first);
  setLimit(3);
  arrive();
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(countIn(PageState::kFar, first + 3, 37), 37u);
  EXPECT_EQ(tier_->held(), 37u);
  EXPECT_FALSE(faultsWait());
  // Its slot is free again.
  const PageIndex others = allocate();
  makeFar(others, 3 * kReads);
  setLimit(4096);
  for (uint64_t i = 0; i < kReads; ++i) ask(others + 3 * i);
  EXPECT_EQ(tier_->requests().size(), kReads);
}

TEST_F(Ahead, WhatSomebodyWaitsForByNowIsInstalledWhenThereIsRoom) {
  const PageIndex first = farPages(40);
  stream(first);
  ask(first + 4);
  setLimit(3);
  arrive();
  EXPECT_TRUE(waits(first + 4));
  setLimit(6);
  turn();
  EXPECT_FALSE(waits(first + 4));
  EXPECT_EQ(load(first + 5), (first + 5).value());
}

TEST_F(Ahead, PagesThatAreDiscardedMeanwhileSplitTheRead) {
  const PageIndex first = farPages(40);
  stream(first);
  discard(first + 4);
  arrive();
  EXPECT_EQ(load(first + 3), (first + 3).value());
  EXPECT_EQ(word(first + 4), PageWord());
  EXPECT_EQ(load(first + 5), (first + 5).value());
  EXPECT_EQ(held(), 5u);
  EXPECT_EQ(core_.stats->promotions.load(), 5u);
}

TEST_F(Ahead, APageThatCannotBeFilledLeavesTheOthers) {
  const PageIndex first = farPages(40);
  stream(first);
  tier_->end(1);
  turn();
  kernel_.fail(Call::kCopy, 1, PortOutcome::kExists, PageCount(1));
  arrive();
  EXPECT_EQ(load(first + 3), (first + 3).value());
  EXPECT_EQ(word(first + 4), PageWord());
  EXPECT_EQ(load(first + 5), (first + 5).value());
  EXPECT_EQ(held(), 5u);
}

// ---- Copies that stay behind.

class Kept : public FaultServiceTest {
 protected:
  void SetUp() override {
    FaultServiceTest::SetUp();
    page_ = farPages(8);
    const GranuleLock granule(*core_.space, granuleOf(page_));
    MutexLock lock(policy_->mutex());
    policy_->copies().saved(granule, Arrival::kFault);
  }
  /// Reads the page; whether its frame is kept as a copy.
  bool keeps() {
    const PageWord far = word(page_);
    ask(page_);
    arrive();
    EXPECT_EQ(load(page_), page_.value());
    if (!word(page_).has(kFlagFarCopy)) {
      EXPECT_EQ(word(page_), PageWord(PageState::kLocal, 0, 0, 0));
      EXPECT_FALSE(kernel_.armed(addressOf(page_)));
      return false;
    }
    EXPECT_EQ(word(page_), PageWord(PageState::kLocal, kFlagFarCopy, 1, far.index()));
    EXPECT_TRUE(kernel_.armed(addressOf(page_)));
    EXPECT_EQ(tier_->held(), 8u);
    return true;
  }
  PageIndex page_;
};

TEST_F(Kept, WhereThatHasPaidBefore) { EXPECT_TRUE(keeps()); }

TEST_F(Kept, NotWhereItHasNotPaid) {
  {
    const GranuleLock granule(*core_.space, granuleOf(page_));
    MutexLock lock(policy_->mutex());
    policy_->copies().outdated(granule, Arrival::kFault);
  }
  EXPECT_FALSE(keeps());
}

TEST_F(Kept, NotWhereWritesAreNotTracked) {
  kernel_.tracks_writes = false;
  EXPECT_FALSE(keeps());
}

TEST_F(Kept, NotInATierThatIsToBeEmptied) {
  makeService();
  tier_->close();
  EXPECT_FALSE(keeps());
}

TEST_F(Kept, NotInATierThatIsNearlyFull) {
  ASSERT_TRUE(tier_->allocate(PageCount(2048 / 8 * 7 - 8 + 1)));
  EXPECT_FALSE(keeps());
}

TEST_F(Kept, InATierThatIsNotQuiteAsFull) {
  ASSERT_TRUE(tier_->allocate(PageCount(2048 / 8 * 7 - 8)));
  const PageWord far = word(page_);
  ask(page_);
  arrive();
  EXPECT_EQ(word(page_), PageWord(PageState::kLocal, kFlagFarCopy, 1, far.index()));
}

// ---- What the program says that it will need.

class Advised : public FaultServiceTest {
 protected:
  void willNeed(PageIndex first, uint64_t count) {
    MutexLock lock(policy_->mutex());
    ASSERT_TRUE(policy_->willNeed().push({first, PageCount(count)}));
  }
  bool anyAdvice() {
    MutexLock lock(policy_->mutex());
    return !policy_->willNeed().empty();
  }
};

TEST_F(Advised, PagesAreReadInPieces) {
  const PageIndex first = farPages(40);
  willNeed(first, 40);
  turn();
  ASSERT_EQ(tier_->requests().size(), 3u);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(16));
  EXPECT_EQ(tier_->requests()[2].run.count, PageCount(8));
  EXPECT_TRUE(rung(core_.freed_memory)) << "to come back for what is left";
  EXPECT_GE(tier_->flushes, 1u);
  EXPECT_FALSE(anyAdvice());
  turn();
  EXPECT_FALSE(rung(core_.freed_memory)) << "nothing is";
  arrive();
  EXPECT_EQ(countIn(PageState::kLocal, first, 40), 40u);
}

TEST_F(Advised, HalfOfTheReadsAreLeftToFaults) {
  const PageIndex first = allocate();
  makeFar(first, 512);
  for (uint64_t i = 0; i < kReads / 2; ++i) ask(first + 1 + 3 * i);
  ASSERT_EQ(tier_->requests().size(), kReads / 2);
  willNeed(first + 300, 200);
  turn();
  EXPECT_EQ(tier_->requests().size(), kReads / 2);
  tier_->end(1);
  turn();
  EXPECT_EQ(tier_->requests().size(), kReads / 2);
  EXPECT_EQ(state(first + 300), PageState::kFetching);
  EXPECT_TRUE(anyAdvice());
}

TEST_F(Advised, FaultsComeFirst) {
  const PageIndex first = allocate(4);
  willNeed(first, 2048);
  turn();
  MutexLock lock(policy_->mutex());
  EXPECT_EQ(policy_->willNeed().front(PageCount(1)).first, first + 32 * 16) << "32 pieces a turn";
}

TEST_F(Advised, NothingIsPushedOutForThem) {
  const PageIndex first = allocate(4);
  makeFar(first, 40);
  setLimit(16);
  willNeed(first, 2048);
  turn();
  EXPECT_TRUE(tier_->requests().empty());
  EXPECT_FALSE(anyAdvice()) << "all of it is given up";
  setLimit(17);
  willNeed(first, 40);
  turn();
  EXPECT_EQ(tier_->requests().size(), 3u) << "reads are counted when they arrive";
}

TEST_F(Advised, PagesOnTheirWayOutAreTakenBack) {
  const PageIndex first = allocate();
  makeLocal(first, 4);
  for (uint64_t i = 0; i < 3; ++i) makeEvicting(first + i, i);
  willNeed(first, 4);
  setLimit(4 + 18);
  turn();
  expectLocal(first, first.value());
  expectLocal(first + 1, first.value() + 1);
  EXPECT_EQ(state(first + 2), PageState::kEvicting) << "as far as there is room";
  EXPECT_EQ(held(), 6u);
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
