// SPDX-License-Identifier: Apache-2.0
// The evictor's protocol, step by step: staging, writes, frames, and what becomes of the pages when
// the program or a tier comes in between.
#include "runtime/migrate/evict/evictor.h"

#include "tests/migrate/evictor_fixture.h"

namespace tidepool {
namespace {

TEST_F(EvictorTest, MovesPagesToStagingWritesThemAndThenFreesTheirMemory) {
  const PageIndex first = begin(8);
  EXPECT_FALSE(evictor_->busy());
  EXPECT_EQ(start(4), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(word(first + i), PageWord(PageState::kEvicting, 0, 0, i));
    EXPECT_FALSE(present(first + i));
    EXPECT_EQ(kernel_.load(staging_->slotAddress(i)), (first + i).value());
  }
  EXPECT_EQ(state(first + 4), PageState::kLocal);
  ASSERT_EQ(tier_->requests().size(), 1u) << "frames in a row are one write";
  EXPECT_TRUE(tier_->requests()[0].writes);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(4));
  EXPECT_EQ(tier_->flushes, 1u);
  EXPECT_EQ(inStaging(), 4u);
  EXPECT_TRUE(evictor_->busy());
  EXPECT_EQ(held(), 8u) << "they still take memory";

  evictor_->advance();
  EXPECT_FALSE(evictor_->recycle()) << "not written yet";
  tier_->endAll();
  EXPECT_FALSE(evictor_->recycle()) << "nobody has looked";
  evictor_->advance();
  EXPECT_EQ(state(first), PageState::kEvicting) << "in limbo until the memory is wanted";
  EXPECT_EQ(inStaging(), 4u);
  EXPECT_TRUE(evictor_->recycle());
  for (uint64_t i = 0; i < 4; ++i) {
    expectFar(first + i, (first + i).value());
    EXPECT_FALSE(kernel_.present(staging_->slotAddress(i)));
  }
  EXPECT_EQ(inStaging(), 0u);
  EXPECT_FALSE(evictor_->busy());
  EXPECT_EQ(held(), 4u);
  EXPECT_EQ(tier_->held(), 4u);
  EXPECT_EQ(core_.stats->demotions.load(), 4u);
  EXPECT_EQ(core_.stats->demoted_bytes.load(), 4 * kPageSize);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 0u);
  EXPECT_FALSE(evictor_->recycle());

  EXPECT_EQ(start(100), 4u) << "the hand goes on behind them";
  finish();
  for (uint64_t i = 0; i < 8; ++i) expectFar(first + i, (first + i).value());
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(start(1), 0u) << "nothing is local";
}

TEST_F(EvictorTest, FillsSegmentAfterSegmentUntilNoneIsFree) {
  constexpr uint64_t kAll = Staging::kSegments * kBatch;
  core_.budget.setLimit(PageCount(kAll + kBatch));
  tier_ = &addTier(PageCount(2 * kAll), "second");
  core_.tiers.tier(1).close();
  const PageIndex first = begin(kAll + 10, 5);
  EXPECT_EQ(start(kBatch + 3), kBatch + 3);
  EXPECT_EQ(word(first + kBatch), PageWord(PageState::kEvicting, 0, 0, kBatch));
  EXPECT_EQ(start(kAll), kAll - 2 * kBatch) << "whole segments only are free";
  EXPECT_EQ(start(1), 0u);
  finish();
  EXPECT_EQ(start(kAll), kBatch + 7);
  finish();
  for (uint64_t i = 0; i < kAll + 10; ++i) expectFar(first + i, (first + i).value(), 2);
}

TEST_F(EvictorTest, GoesRoundTheSpaceFromWhereItStopped) {
  const PageIndex first = begin(600, 2);
  EXPECT_EQ(start(590), 590u);
  finish();
  makeFar(first + 600, 1);  // granule 1 has pages that are not local
  const PageIndex again = first;
  const PageWord was = word(again);
  change(again, was, PageWord(PageState::kFetching, 0, was.tier(), was.index()));
  ASSERT_EQ(
      core_.port->copy(addressOf(again), bytesOf(first + 599), Bytes(kPageSize), Wake::kNo).outcome,
      PortOutcome::kDone);
  change(again, PageWord(PageState::kFetching, 0, was.tier(), was.index()),
         PageWord(PageState::kLocal, 0, 0, 0));
  tier_->release({was.frame(), PageCount(1)});
  core_.budget.charge(PageCount(1));
  EXPECT_EQ(start(10), 10u);
  EXPECT_EQ(state(again), PageState::kLocal) << "it is behind the hand";
  EXPECT_EQ(start(1), 1u);
  EXPECT_EQ(state(again), PageState::kEvicting);
  finish();
}

TEST_F(EvictorTest, PassesOverGranulesWithoutLocalPages) {
  makeEvictor();
  const PageIndex first = allocate(3);
  makeLocal(first + 1024, 1);
  ASSERT_EQ(start(1), 1u);
  finish();
  expectFar(first + 1024, first.value() + 1024);
}

TEST_F(EvictorTest, ARescuedPageStaysLocalAndItsFrameIsGivenBack) {
  const PageIndex first = begin(4);
  ASSERT_EQ(start(4), 4u);
  rescue(first + 1);
  EXPECT_EQ(held(), 5u) << "it is there twice for a while";
  store(first + 1, 77);
  finish();
  expectFar(first, first.value());
  expectLocal(first + 1, 77);
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(tier_->held(), 3u);
  EXPECT_EQ(core_.stats->demotions.load(), 3u);
}

TEST_F(EvictorTest, APageThatIsDiscardedWhileItIsWrittenGivesItsFrameBack) {
  const PageIndex first = begin(3);
  ASSERT_EQ(start(3), 3u);
  discard(first + 2);
  EXPECT_EQ(state(first + 2), PageState::kEmpty);
  finish();
  EXPECT_EQ(word(first + 2), PageWord());
  EXPECT_EQ(tier_->held(), 2u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(EvictorTest, APageThatWasRescuedAndLeftAgainIsNotTakenForItsFirstEviction) {
  const PageIndex first = begin(2);
  ASSERT_EQ(start(1), 1u);
  rescue(first);
  store(first, 55);
  ASSERT_EQ(start(2), 2u) << "the other one, and the first once more";
  EXPECT_EQ(word(first).index(), kBatch + 1);
  tier_->end(1);
  evictor_->advance();
  EXPECT_TRUE(evictor_->recycle());
  EXPECT_EQ(state(first), PageState::kEvicting) << "of the second batch";
  finish();
  expectFar(first, 55);
  EXPECT_EQ(tier_->held(), 2u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(EvictorTest, TheBatchThatWasWrittenFirstIsRecycledFirst) {
  const PageIndex first = begin(3);
  ASSERT_EQ(start(1), 1u);
  ASSERT_EQ(start(1), 1u);
  ASSERT_EQ(start(1), 1u);
  ASSERT_EQ(tier_->requests().size(), 3u);
  tier_->end(1);
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  EXPECT_EQ(state(first), PageState::kFar);
  makeLocal(first + 3, 1);
  ASSERT_EQ(start(1), 1u) << "in the segment that is free again";
  EXPECT_EQ(word(first + 3).index(), 0u);
  tier_->end(2);
  evictor_->advance();
  tier_->endAll();
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  EXPECT_EQ(state(first + 1), PageState::kFar);
  EXPECT_EQ(state(first + 3), PageState::kEvicting) << "in the first segment, but written last";
  finish();
  EXPECT_EQ(state(first + 3), PageState::kFar);
}

TEST_F(EvictorTest, AServerErrorLeavesThePagesLocal) {
  const PageIndex first = begin(4);
  ASSERT_EQ(start(4), 4u);
  discard(first + 3);
  rescue(first + 2);
  store(first + 2, 99);
  tier_->endAll(ErrorCode::kUnreachable);
  evictor_->advance();
  expectLocal(first, first.value());
  expectLocal(first + 1, first.value() + 1);
  expectLocal(first + 2, 99);
  EXPECT_EQ(word(first + 3), PageWord());
  EXPECT_FALSE(present(first + 3));
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(inStaging(), 0u);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_FALSE(kernel_.present(staging_->slotAddress(0)));
  EXPECT_TRUE(tier_->closed());
  EXPECT_FALSE(evictor_->usable());
  EXPECT_TRUE(exhausted());
  EXPECT_EQ(errors(), 1u);
  EXPECT_FALSE(evictor_->recycle());
  EXPECT_EQ(start(1), 0u);
  EXPECT_EQ(core_.stats->demotions.load(), 0u);
  evictor_->spaceCame();
  EXPECT_FALSE(evictor_->usable()) << "that tier takes nothing more";
  addTier(PageCount(8), "second");
  evictor_->spaceCame();
  EXPECT_FALSE(evictor_->usable()) << "it was not full, and none was expected";
}

TEST_F(EvictorTest, OfTwoTiersOneMayFail) {
  FakeTier& second = addTier(PageCount(64), "second");
  const PageIndex first = begin(4);
  ASSERT_EQ(start(2), 2u);
  ASSERT_EQ(start(1), 1u);
  tier_->endAll(ErrorCode::kTimedOut);
  evictor_->advance();
  expectLocal(first, first.value());
  EXPECT_TRUE(evictor_->usable());
  EXPECT_FALSE(exhausted());
  EXPECT_EQ(errors(), 1u) << "it is said once";
  ASSERT_EQ(start(4), 4u);
  EXPECT_TRUE(tier_->requests().empty());
  second.endAll();
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  for (uint64_t i = 0; i < 4; ++i) expectFar(first + i, (first + i).value(), 2);
}

TEST_F(EvictorTest, APageThatCannotBePutBackWasUnmappedByTheProgram) {
  const PageIndex first = begin(2);
  ASSERT_EQ(start(2), 2u);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kInvalid);
  tier_->endAll(ErrorCode::kUnreachable);
  evictor_->advance();
  EXPECT_EQ(word(first), PageWord());
  expectLocal(first + 1, first.value() + 1);
  EXPECT_EQ(held(), 1u);
}

TEST_F(EvictorTest, AWriteThatCannotBeSubmittedFailsItsBatch) {
  const PageIndex first = begin(2);
  tier_->submits = 0;
  EXPECT_EQ(start(2), 2u);
  expectLocal(first, first.value());
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_TRUE(exhausted());
}

TEST_F(EvictorTest, ABatchFailsOnceAllItsWritesHaveEnded) {
  const PageIndex first = begin(5);
  wipe(first + 2);  // which is not written, so that two writes are what is around it
  ASSERT_EQ(start(5), 5u);
  ASSERT_EQ(tier_->requests().size(), 2u);
  tier_->end(1, ErrorCode::kUnreachable);
  evictor_->advance();
  EXPECT_EQ(state(first), PageState::kEvicting) << "the other write still reads the staging area";
  tier_->end(1);
  evictor_->advance();
  for (uint64_t i = 0; i < 5; ++i) expectLocal(first + i, i == 2 ? 0 : (first + i).value());
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(EvictorTest, NoMoreFramesAreTakenThanThereArePages) {
  tier_ = &addTier(PageCount(16), "second");
  core_.tiers.tier(1).close();
  ASSERT_TRUE(tier_->allocate(PageCount(16)));
  tier_->release({FrameIndex(1), PageCount(2)});
  tier_->release({FrameIndex(4), PageCount(12)});
  const PageIndex first = begin(13);
  ASSERT_EQ(start(13), 13u);
  EXPECT_EQ(tier_->held(), 2u + 13);
  finish();
  for (uint64_t i = 0; i < 13; ++i) expectFar(first + i, (first + i).value(), 2);
}

TEST_F(EvictorTest, OfTwoWritesTheSecondMayBeRefused) {
  const PageIndex first = begin(5);
  wipe(first + 2);
  tier_->submits = 1;
  ASSERT_EQ(start(5), 5u);
  finish();
  for (uint64_t i = 0; i < 5; ++i) expectLocal(first + i, i == 2 ? 0 : (first + i).value());
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(EvictorTest, NoFrameNeedBeBesideAnother) {
  tier_ = &addTier(PageCount(4096), "second");
  core_.tiers.tier(1).close();
  ASSERT_TRUE(tier_->allocate(PageCount(4096)));
  for (uint64_t frame = 0; frame < 4096; frame += 2) {
    tier_->release({FrameIndex(frame), PageCount(1)});
  }
  const PageIndex first = begin(300);
  ASSERT_EQ(start(300), 300u);
  finish();
  for (uint64_t i = 0; i < 300; ++i) expectFar(first + i, (first + i).value(), 2);
  EXPECT_EQ(held(), 0u);
}

// ---- Far memory that is full, or comes and goes.

TEST_F(EvictorTest, WhenFarMemoryIsFullNothingLeaves) {
  tier_ = &addTier(PageCount(4), "small");
  core_.tiers.tier(1).close();
  const PageIndex first = begin(8);
  EXPECT_EQ(start(100), 8u) << "it does not try again";
  for (uint64_t i = 0; i < 8; ++i) expectLocal(first + i, (first + i).value());
  EXPECT_EQ(held(), 8u);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_TRUE(tier_->requests().empty());
  EXPECT_FALSE(evictor_->usable());
  EXPECT_TRUE(exhausted());
  EXPECT_EQ(errors(), 1u);
  EXPECT_EQ(start(1), 0u);

  evictor_->spaceCame();
  EXPECT_TRUE(evictor_->usable());
  EXPECT_FALSE(exhausted());
  RoomState::Supply(core_.room).setFarExhausted(true);
  evictor_->spaceCame();
  EXPECT_TRUE(exhausted()) << "who said that since is right";
  RoomState::Supply(core_.room).setFarExhausted(false);
  ASSERT_EQ(start(4), 4u);
  finish();
  expectFar(first, first.value(), 2);
}

TEST_F(EvictorTest, WhileFarMemoryGrowsItIsNotExhausted) {
  tier_ = &addTier(PageCount(4), "small");
  core_.tiers.tier(1).close();
  RoomState::Supply(core_.room).setGrowing(true);
  begin(8);
  EXPECT_EQ(start(8), 8u);
  EXPECT_FALSE(evictor_->usable());
  EXPECT_FALSE(exhausted());
  EXPECT_EQ(errors(), 0u);
  evictor_->sayFull();
  EXPECT_FALSE(exhausted());
  addTier(PageCount(8), "more");
  evictor_->spaceCame();
  EXPECT_TRUE(evictor_->usable());
}

TEST_F(EvictorTest, WhenNoMoreComesAfterAllItIsExhausted) {
  tier_ = &addTier(PageCount(4), "small");
  core_.tiers.tier(1).close();
  RoomState::Supply(core_.room).setGrowing(true);
  begin(8);
  ASSERT_EQ(start(8), 8u);
  RoomState::Supply(core_.room).setGrowing(false);
  evictor_->sayFull();
  EXPECT_TRUE(exhausted());
  evictor_->sayFull();
  EXPECT_EQ(errors(), 1u);
}

TEST_F(EvictorTest, WhereAllTiersAreClosedNothingIsTriedAndNothingSaidToBeFull) {
  begin(8);
  evictor_->spaceWent();
  EXPECT_TRUE(evictor_->usable()) << "one is open";
  core_.tiers.tier(1).close();
  evictor_->spaceWent();
  EXPECT_FALSE(evictor_->usable());
  EXPECT_EQ(start(8), 0u);
  evictor_->sayFull();
  EXPECT_TRUE(exhausted());
  EXPECT_EQ(errors(), 0u);
  core_.tiers.tier(1).reopen();
  evictor_->spaceCame();
  EXPECT_EQ(start(8), 8u);
  EXPECT_FALSE(exhausted());
}

TEST_F(EvictorTest, SpaceThatComesWhileNothingWasFullChangesNothing) {
  begin(1);
  RoomState::Supply(core_.room).setFarExhausted(true);
  evictor_->spaceCame();
  EXPECT_TRUE(exhausted());
}

TEST_F(EvictorTest, WithoutAFetchTierItWaitsForOneToCome) {
  auto tier = core_.tiers.remove(1);
  core_.tiers.free(1);
  makeEvictor();
  EXPECT_FALSE(evictor_->usable());
  tier_ = &addTier();
  evictor_->spaceCame();
  EXPECT_FALSE(evictor_->usable()) << "none was expected";

  auto again = core_.tiers.remove(1);
  core_.tiers.free(1);
  core_.tiers.expectMore();
  makeEvictor();
  EXPECT_FALSE(evictor_->usable());
  evictor_->spaceCame();
  EXPECT_FALSE(evictor_->usable()) << "none is there";
  tier_ = &addTier();
  evictor_->spaceCame();
  EXPECT_TRUE(evictor_->usable());
  const PageIndex first = begin(1);
  ASSERT_EQ(start(1), 1u);
  finish();
  expectFar(first, first.value());
}

TEST_F(EvictorTest, ALostTierIsWaitedForWhereMoreMayCome) {
  core_.tiers.expectMore();
  begin(1);
  evictor_->spaceCame();
  ASSERT_EQ(start(1), 1u);
  tier_->endAll(ErrorCode::kLost);
  evictor_->advance();
  EXPECT_FALSE(evictor_->usable());
  addTier(PageCount(8), "more");
  evictor_->spaceCame();
  EXPECT_TRUE(evictor_->usable());
  EXPECT_FALSE(exhausted());
}

TEST_F(EvictorTest, ALostTierIsNotWaitedForWhileThereIsAnother) {
  core_.tiers.expectMore();
  addTier(PageCount(8), "second");
  begin(1);
  evictor_->spaceCame();
  ASSERT_EQ(start(1), 1u);
  tier_->endAll(ErrorCode::kLost);
  evictor_->advance();
  EXPECT_TRUE(evictor_->usable());
  RoomState::Supply(core_.room).setFarExhausted(true);
  evictor_->spaceCame();
  EXPECT_TRUE(exhausted()) << "space that comes now is none that was wanted";
}

TEST_F(EvictorTest, ATierThatHasGoneIsPassedOver) {
  FakeTier& second = addTier(PageCount(8), "second");
  auto gone = core_.tiers.remove(1);
  const PageIndex first = begin(1);
  ASSERT_EQ(start(1), 1u);
  second.endAll();
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  expectFar(first, first.value(), 2);
}

TEST_F(EvictorTest, ABatchThatIsShorterThanTheLastOfItsSegmentWritesNoMoreThanItHas) {
  tier_ = &addTier(PageCount(3), "small");
  core_.tiers.tier(1).close();
  const PageIndex first = begin(5);
  ASSERT_EQ(start(3), 3u);
  finish();
  discard(first, 3);
  ASSERT_EQ(start(2), 2u);
  ASSERT_EQ(tier_->requests().size(), 1u);
  EXPECT_EQ(tier_->requests()[0].run.first, FrameIndex(0));
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(2));
  finish();
  EXPECT_EQ(tier_->held(), 2u);
}

TEST_F(EvictorTest, AllCopiesOfLocalPagesMakeRoomWhereverTheyLie) {
  tier_ = &addTier(PageCount(512), "small");
  core_.tiers.tier(1).close();
  const PageIndex first = begin(8, 3);
  makeLocal(first + 1024, 512);
  core_.space->placements().set(granuleOf(first + 1024), Placement::local());
  for (uint64_t i = 1024; i < 1536; ++i) {
    const auto frame = tier_->allocate(PageCount(1));
    ASSERT_TRUE(frame);
    change(first + i, word(first + i),
           PageWord(PageState::kLocal, kFlagFarCopy, 2, frame->first.value()));
  }
  ASSERT_EQ(start(8), 8u);
  EXPECT_EQ(errors(), 0u);
  EXPECT_EQ(tier_->held(), 8u);
  finish();
  expectFar(first + 7, first.value() + 7, 2);
}

TEST_F(EvictorTest, CopiesOfLocalPagesMakeRoom) {
  tier_ = &addTier(PageCount(8), "small");
  core_.tiers.tier(1).close();
  const PageIndex first = begin(16, 2);
  // Their frames are all that there is; the pages stay, so the copies serve nobody.
  for (uint64_t i = 8; i < 16; ++i) {
    const auto frame = tier_->allocate(PageCount(1));
    ASSERT_TRUE(frame);
    change(first + i, word(first + i),
           PageWord(PageState::kLocal, kFlagFarCopy | kFlagUnproven | kFlagProbed, 2,
                    frame->first.value()));
  }
  ASSERT_EQ(start(8), 8u);
  EXPECT_EQ(word(first + 15), PageWord(PageState::kLocal, kFlagUnproven | kFlagProbed, 0, 0));
  finish();
  for (uint64_t i = 0; i < 8; ++i) expectFar(first + i, (first + i).value(), 2);
  EXPECT_EQ(errors(), 0u);
}

TEST_F(EvictorTest, ATierThatCannotBeOpenedIsClosedAndPassedOver) {
  core_.fork.setServedChild();
  FakeTier& second = addTier(PageCount(8), "second");
  const PageIndex first = begin(2);
  EXPECT_EQ(tier_->opened, 0u) << "a child opens what it needs, when it does";
  tier_->opens = false;
  ASSERT_EQ(start(2), 2u);
  EXPECT_TRUE(tier_->closed());
  EXPECT_EQ(errors(), 1u);
  EXPECT_EQ(second.opened, 1u);
  second.endAll();
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  expectFar(first, first.value(), 2);
}

TEST_F(EvictorTest, AtTheStartEveryTierMustOpen) {
  FakeTier& second = addTier(PageCount(8), "second");
  second.opens = false;
  EXPECT_FALSE(Evictor::create(core_, *staging_, *policy_));
  second.opens = true;
  makeEvictor();
  EXPECT_EQ(tier_->channels, 1u);
  EXPECT_EQ(second.channels, 1u);
  evictor_->letGo(2);
  EXPECT_EQ(tier_->channels, 1u);
  EXPECT_EQ(second.channels, 0u);
}

TEST_F(EvictorTest, FramesThatWereTakenAwayMeanwhileTakeNoPages) {
  const PageIndex first = begin(3);
  ASSERT_EQ(start(3), 3u);
  tier_->forsake(FrameIndex(2));
  tier_->endAll();
  evictor_->advance();
  for (uint64_t i = 0; i < 3; ++i) expectLocal(first + i, (first + i).value());
  EXPECT_TRUE(tier_->closed());
}

TEST_F(EvictorTest, WhatIsInLimboOnTheWayToALostTierIsTakenBack) {
  FakeTier& second = addTier(PageCount(8), "second");
  const PageIndex first = begin(4, 2);
  ASSERT_EQ(start(2), 2u);
  tier_->endAll();
  evictor_->advance();
  tier_->close();
  ASSERT_EQ(start(1), 1u);
  second.endAll();
  evictor_->advance();
  ASSERT_EQ(start(1), 1u) << "still being written";
  evictor_->takeBack(2);
  expectLocal(first + 2, first.value() + 2);
  EXPECT_EQ(state(first), PageState::kEvicting);
  EXPECT_EQ(state(first + 3), PageState::kEvicting);
  EXPECT_EQ(second.held(), 1u);
  evictor_->takeBack(1);
  expectLocal(first, first.value());
  expectLocal(first + 1, first.value() + 1);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(inStaging(), 1u);
  EXPECT_EQ(held(), 4u);
}

TEST_F(EvictorTest, ATierLaterInABatchIsTakenBackFrom) {
  // Page 0 is wanted in the second tier, page 512 is not: one batch, two tiers.
  FakeTier& second = addTier(PageCount(64), "second");
  makeEvictor();
  const PageIndex first = allocate(2);
  makeLocal(first, 1);
  makeLocal(first + kPagesPerGranule, 1);
  core_.space->placements().set(granuleOf(first + kPagesPerGranule), Placement::in(2));
  ASSERT_EQ(start(2), 2u);
  ASSERT_EQ(second.requests().size(), 1u);
  tier_->endAll();
  second.endAll();
  evictor_->advance();
  evictor_->takeBack(2);
  expectLocal(first, first.value());
  expectLocal(first + kPagesPerGranule, first.value() + kPagesPerGranule);
  EXPECT_EQ(tier_->held(), 0u);
  EXPECT_EQ(second.held(), 0u);
}

// ---- What it waits for.

TEST_F(EvictorTest, WaitsForTheChannelsThatHaveWritesUnderWay) {
  FakeTier& second = addTier(PageCount(8), "second");
  makeEvictor();
  std::array<Evictor::Wait, TierSet::kMost> waits;
  EXPECT_EQ(evictor_->waits(waits), 0u);
  const PageIndex first = allocate(1);
  makeLocal(first, 1);
  tier_->close();
  second.deadline = Nanoseconds(5);
  ASSERT_EQ(start(1), 1u);
  ASSERT_EQ(evictor_->waits(waits), 1u);
  EXPECT_EQ(waits[0].fd, second.requests()[0].channel->fd());
  EXPECT_EQ(waits[0].events, POLLIN);
  EXPECT_EQ(waits[0].deadline, Nanoseconds(5));
  second.endAll();
  evictor_->advance();
  EXPECT_EQ(evictor_->waits(waits), 0u);
}

}  // namespace
}  // namespace tidepool
