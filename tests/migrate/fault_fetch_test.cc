// SPDX-License-Identifier: Apache-2.0
// The fault service's reads from far memory, a turn of its loop at a time: for touches, and what
// happens when memory, reads in flight or the tier run out. Ahead of touches:
// fault_prefetch_test.cc.
#include "tests/migrate/fault_service_fixture.h"

namespace tidepool {
namespace {

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

// ---- Faults that more memory would have saved.

class ShortOfMemory : public FaultServiceTest {
 protected:
  void SetUp() override {
    FaultServiceTest::SetUp();
    core_.options.dram = toBytes(PageCount(4096));  // a step is 128 pages
  }
  /// A far page since whose eviction so many others went.
  PageIndex gone(uint64_t others) {
    const PageIndex page = farPage();
    leave(page, others);
    return page;
  }
  void leave(PageIndex page, uint64_t others) {
    MutexLock lock(policy_->mutex());
    EXPECT_EQ(policy_->chooser().classify(page, WriteBit::kNotArmed), Verdict::kEvict);
    for (uint64_t i = 0; i < others; ++i) {
      policy_->chooser().classify(PageIndex(15'000 + i), WriteBit::kNotArmed);
    }
  }
  void bringIn(PageIndex page) {
    ask(page);
    clock_.advance(Nanoseconds(50'000));
    arrive();
    expectLocal(page, page.value());
  }
  static constexpr uint64_t kFault = 50'000 + FaultCost::kGuess.value();
  uint64_t oneStep() const { return core_.stats->faults_a_step_short.load(); }
  uint64_t twoSteps() const { return core_.stats->faults_two_steps_short.load(); }
};

TEST_F(ShortOfMemory, FaultsAreCountedByHowManyPagesWentSince) {
  bringIn(farPage());
  EXPECT_EQ(oneStep() + twoSteps(), 0u) << "it was never evicted";
  bringIn(gone(20));
  EXPECT_EQ(oneStep(), 1u);
  bringIn(gone(200));
  EXPECT_EQ(oneStep(), 1u);
  EXPECT_EQ(twoSteps(), 1u);
  bringIn(gone(500));
  EXPECT_EQ(oneStep() + twoSteps(), 2u);
  EXPECT_EQ(core_.stats->faults_short_nanoseconds.load(), 2 * kFault);
}

TEST_F(ShortOfMemory, TimeThatASmallPartOfAStepWouldHaveSavedIsCountedBesides) {
  const auto part = [this] { return core_.stats->faults_part_short_nanoseconds.load(); };
  bringIn(gone(2));
  EXPECT_EQ(oneStep(), 1u);
  EXPECT_EQ(part(), kFault);
  bringIn(gone(20));
  EXPECT_EQ(oneStep(), 2u);
  EXPECT_EQ(part(), kFault);
  EXPECT_EQ(core_.stats->faults_short_nanoseconds.load(), 2 * kFault);
}

TEST_F(ShortOfMemory, APageThatASmallPartWouldJustNotHaveKeptIsCountedToTheStepAlone) {
  bringIn(gone(7));  // half of the eight may have gone since: a 32nd part of the step
  EXPECT_EQ(oneStep(), 1u);
  EXPECT_EQ(core_.stats->faults_part_short_nanoseconds.load(), 0u);
}

TEST_F(ShortOfMemory, WhatNobodyWaitsForIsNotCounted) {
  const PageIndex page = gone(20);
  {
    MutexLock lock(policy_->mutex());
    ASSERT_TRUE(policy_->willNeed().push({page, PageCount(1)}));
  }
  core_.freed_memory.ring();
  turn();
  arrive();
  EXPECT_EQ(state(page), PageState::kLocal);
  EXPECT_EQ(oneStep(), 0u);
}

TEST_F(ShortOfMemory, WithoutABudgetThereIsNoStep) {
  core_.options.dram = Bytes();
  bringIn(gone(20));
  EXPECT_EQ(oneStep(), 0u);
}

TEST_F(ShortOfMemory, ACompressedPoolHearsOfThem) {
  addPool();
  const PageCount limit(4096);
  PageCount target;
  const auto adjust = [&] {
    MutexLock lock(policy_->mutex());
    policy_->poolSize().adjust(limit, target, limit);
    target = policy_->poolSize().target();
  };
  adjust();
  const PageIndex page = allocate();
  for (const uint64_t others : {300, 2}) {
    const PageCount before = target;
    for (int i = 0; i < 520; ++i) {
      makeFar(page, 1);
      leave(page, others);
      ask(page);
      arrive();
      discard(page);
    }
    adjust();
    EXPECT_EQ(target < before, others == 2) << others;
  }
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
  const uint64_t sent = tier_->flushes;
  turn();
  EXPECT_EQ(tier_->flushes, sent) << "nor can anything be sent";
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

// ---- With a compressed pool.

TEST_F(Fetch, ThePolicyHearsWhatFaultsTook) {
  const auto costs = [this] {
    MutexLock lock(policy_->mutex());
    return policy_->poolSize().costs();
  };
  addPool();
  const PageIndex packed = allocate();
  pack(packed);
  const PoolSize::Costs before = costs();
  ask(packed);
  EXPECT_LT(costs().hit, before.hit) << "the test's clock stands still";
  EXPECT_EQ(costs().far, before.far);
  ask(farPage());
  clock_.advance(Nanoseconds(1'000'000));
  arrive();
  EXPECT_GT(costs().far, before.far);
}

TEST_F(Fetch, ThePolicyHearsWhatAFaultCostsBesides) {
  addPool();
  const PageIndex first = allocate();
  for (uint64_t i = 0; i < 32; ++i) {
    pack(first + i);
    ASSERT_FALSE(kernel_.touch(addressOf(first + i), 7));
    turn();
    clock_.advance(Nanoseconds(60'000));  // until the same thread faults again
  }
  MutexLock lock(policy_->mutex());
  EXPECT_GT(policy_->poolSize().costs().fault, FaultCost::kGuess);
}

TEST_F(Fetch, RoomInThePoolIsNoneForPagesThatAreLocal) {
  addPool();
  while (tier_->allocate(PageCount(1))) {
  }
  setLimit(0);
  RoomState::Supply(core_.room).setNothingLeaves(true);
  ask(allocate());
  EXPECT_EQ(errors(), 1u);
  EXPECT_TRUE(errorSays("far memory is full"));
}

}  // namespace
}  // namespace tidepool
