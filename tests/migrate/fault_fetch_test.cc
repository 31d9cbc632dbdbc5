// SPDX-License-Identifier: Apache-2.0
// The fault service's reads from far memory, a turn of its loop at a time: for touches, ahead of a
// stream and on advice, and what happens when memory, reads in flight or the tier run out.
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
    MutexLock lock(policy_->mutex());
    EXPECT_EQ(policy_->chooser().classify(page, WriteBit::kNotArmed), Verdict::kEvict);
    for (uint64_t i = 0; i < others; ++i) {
      policy_->chooser().classify(PageIndex(15'000 + i), WriteBit::kNotArmed);
    }
    return page;
  }
  void bringIn(PageIndex page) {
    ask(page);
    clock_.advance(Nanoseconds(50'000));
    arrive();
    expectLocal(page, page.value());
  }
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
  EXPECT_EQ(core_.stats->faults_short_nanoseconds.load(), 2 * 50'000u);
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

}  // namespace
}  // namespace tidepool
