// SPDX-License-Identifier: Apache-2.0
// What the fault service reads before it is touched, a turn of its loop at a time: ahead of a
// stream, and on advice.
#include "tests/migrate/fault_service_fixture.h"

namespace tidepool {
namespace {

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
  arrive();
  ask(first + 14);
  EXPECT_EQ(core_.stats->prefetch_hits.load(), 3u + 7) << "the page of a fault was not among them";
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

TEST_F(Ahead, WhoWaitsByNowForAReadThatFailsHasThePageReadAlone) {
  const PageIndex first = farPages(40);
  stream(first);
  ask(first + 4);
  arrive(ErrorCode::kUnreachable);
  EXPECT_EQ(countIn(PageState::kLost, first + 2, 4), 1u) << "of several, some may be there";
  EXPECT_FALSE(waits(first + 4));
  ask(first + 4);
  arrive(ErrorCode::kUnreachable);
  EXPECT_EQ(state(first + 4), PageState::kLost);
  EXPECT_EQ(countIn(PageState::kLost, first + 2, 38), 2u);
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
