// SPDX-License-Identifier: Apache-2.0
// The evictor's protocol, step by step: which pages go, how they leave the space, and what becomes
// of them when the program, the tier or the kernel comes in between.
#include "runtime/migrate/evict/evictor.h"

#include <sys/mman.h>

#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

constexpr uint64_t kBatch = Staging::kSlotsPerSegment;

class EvictorTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    tier_ = &addTier();
  }
  void makeEvictor() {
    auto evictor = Evictor::create(core_, *staging_, *policy_);
    ASSERT_TRUE(evictor);
    evictor_ = std::move(*evictor);
  }
  /// So many local pages, each of which holds its number, and the evictor.
  PageIndex begin(uint64_t pages, uint64_t granules = 1) {
    if (evictor_ == nullptr) makeEvictor();
    const PageIndex first = allocate(granules);
    makeLocal(first, pages);
    return first;
  }
  uint64_t start(uint64_t pages) { return evictor_->start(PageCount(pages)).value(); }
  /// All that is on its way arrives, and its memory is freed.
  void finish() {
    tier_->endAll();
    evictor_->advance();
    while (evictor_->recycle()) {
    }
  }
  uint64_t inStaging() const { return evictor_->inStaging().value(); }
  /// A local page with the same bytes in a new frame of the first tier, armed since it came.
  PageWord giveCopy(PageIndex page) {
    const auto frame = tier_->allocate(PageCount(1));
    EXPECT_TRUE(frame);
    EXPECT_TRUE(tier_->write(*frame, bytesOf(page)));
    const PageWord copy(PageState::kLocal, kFlagFarCopy, 1, frame->first.value());
    change(page, word(page), copy);
    EXPECT_TRUE(core_.port->writeProtect(addressOf(page), Bytes(kPageSize), Wake::kNo));
    return copy;
  }
  const std::byte* bytesOf(PageIndex page) const {
    return reinterpret_cast<const std::byte*>(addressOf(page));
  }
  /// As the fault service does when a page is touched on its way out.
  void rescue(PageIndex page) {
    const PageWord evicting = word(page);
    ASSERT_EQ(evicting.state(), PageState::kEvicting);
    core_.budget.charge(PageCount(1));
    ASSERT_EQ(core_.port
                  ->copy(addressOf(page), staging_->slotMemory(evicting.index()), Bytes(kPageSize),
                         Wake::kNo)
                  .outcome,
              PortOutcome::kDone);
    change(page, evicting, PageWord(PageState::kLocal, 0, 0, 0));
  }
  /// The page is far, and its frame has this word.
  void expectFar(PageIndex page, uint64_t value, uint8_t tier = 1) {
    ASSERT_EQ(state(page), PageState::kFar);
    EXPECT_EQ(word(page).tier(), tier);
    EXPECT_EQ(word(page), PageWord(PageState::kFar, 0, tier, word(page).index()));
    EXPECT_EQ(static_cast<FakeTier&>(core_.tiers.tier(tier)).word(word(page).frame()), value);
    EXPECT_FALSE(present(page));
  }
  void expectLocal(PageIndex page, uint64_t value) {
    EXPECT_EQ(word(page), PageWord(PageState::kLocal, 0, 0, 0));
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), value);
  }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  bool exhausted() const { return core_.room.farExhausted(); }

  FakeTier* tier_ = nullptr;
  std::unique_ptr<Evictor> evictor_;
};

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
  giveCopy(first + 2);  // which is not written, so that two writes are what is around it
  ASSERT_EQ(start(5), 5u);
  ASSERT_EQ(tier_->requests().size(), 2u);
  tier_->end(1, ErrorCode::kUnreachable);
  evictor_->advance();
  EXPECT_EQ(state(first), PageState::kEvicting) << "the other write still reads the staging area";
  tier_->end(1);
  evictor_->advance();
  for (uint64_t i = 0; i < 5; ++i) expectLocal(first + i, (first + i).value());
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
  giveCopy(first + 2);
  tier_->submits = 1;
  ASSERT_EQ(start(5), 5u);
  finish();
  for (uint64_t i = 0; i < 5; ++i) expectLocal(first + i, (first + i).value());
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
  addTier(PageCount(8), "more");
  evictor_->spaceCame();
  EXPECT_TRUE(evictor_->usable());
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

// ---- Where pages are wanted.

TEST_F(EvictorTest, PagesThatAreToStayLocalStay) {
  const PageIndex first = begin(4);
  core_.space->placements().set(granuleOf(first), Placement::local());
  EXPECT_EQ(start(4), 0u);
  EXPECT_TRUE(evictor_->usable());
  core_.space->placements().set(granuleOf(first), Placement());
  EXPECT_EQ(start(4), 4u);
}

TEST_F(EvictorTest, PagesThatAreWantedInATierGoThere) {
  FakeTier& second = addTier(PageCount(3), "second");
  makeEvictor();
  const PageIndex first = allocate(2);
  makeLocal(first, 2);
  makeLocal(first + kPagesPerGranule, 2);
  core_.space->placements().set(granuleOf(first), Placement::in(2));
  ASSERT_EQ(start(4), 4u);
  EXPECT_EQ(second.requests().size(), 1u);
  EXPECT_EQ(tier_->requests().size(), 1u);
  second.endAll();
  finish();
  expectFar(first, first.value(), 2);
  expectFar(first + 1, first.value() + 1, 2);
  expectFar(first + kPagesPerGranule, first.value() + kPagesPerGranule, 1);
  // One frame is left there: two pages go elsewhere rather than apart.
  makeLocal(first + 2, 2);
  ASSERT_EQ(start(2), 2u);
  finish();
  expectFar(first + 2, first.value() + 2, 1);
  EXPECT_EQ(second.held(), 2u);
}

TEST_F(EvictorTest, PlacedFramesAreGivenBackWhenTheRestHasNoRoom) {
  FakeTier& second = addTier(PageCount(2), "second");
  tier_->close();
  makeEvictor();
  const PageIndex first = allocate(2);
  makeLocal(first, 2);
  makeLocal(first + kPagesPerGranule, 1);
  core_.space->placements().set(granuleOf(first), Placement::in(2));
  EXPECT_EQ(start(3), 3u);
  EXPECT_EQ(second.held(), 0u);
  EXPECT_EQ(inStaging(), 0u);
  EXPECT_TRUE(exhausted());
}

TEST_F(EvictorTest, PagesThatAreWantedFarGoWhateverThePolicySays) {
  const PageIndex first = begin(4);
  {
    MutexLock lock(policy_->mutex());
    for (uint64_t i = 0; i < 4; ++i) policy_->chooser().onSample(first + i, 15);
  }
  core_.space->placements().set(granuleOf(first), Placement::in(1));
  ASSERT_EQ(start(2), 2u);
  MutexLock lock(policy_->mutex());
  EXPECT_EQ(policy_->chooser().score(first + 3), 15u) << "nobody asked";
}

TEST_F(EvictorTest, WhatThePolicyKeepsGoesAfterThreeTurnsInVain) {
  const PageIndex first = begin(4);
  {
    MutexLock lock(policy_->mutex());
    for (uint64_t i = 0; i < 3; ++i) policy_->chooser().onSample(first + i, 15);
  }
  ASSERT_EQ(start(3), 1u) << "a part of a batch now rather than a full one later";
  EXPECT_EQ(state(first + 3), PageState::kEvicting);
  const auto scoreOf = [&](PageIndex page) {
    MutexLock lock(policy_->mutex());
    return policy_->chooser().score(page);
  };
  const uint32_t before = scoreOf(first);
  ASSERT_EQ(start(3), 3u);
  // A turn is a granule more than there are: the hand may have begun in the middle of one.
  EXPECT_EQ(before - scoreOf(first), 3u * 2);
  finish();
  for (uint64_t i = 0; i < 4; ++i) expectFar(first + i, (first + i).value());
}

TEST_F(EvictorTest, PagesWithAHomeInADirectTierAreLeftToTheBalancer) {
  const PageIndex first = begin(3);
  change(first + 1, word(first + 1), PageWord(PageState::kLocal, kFlagShadow, 1, 7));
  EXPECT_EQ(start(3), 2u);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
}

TEST_F(EvictorTest, PagesThatAreKeptOrThatNobodyMayAccessDoNotLeave) {
  const PageIndex first = begin(4);
  core_.space->anchored().keep(first + 1, first + 2);
  ASSERT_TRUE(ranges_->protect(addressOf(first + 2), Bytes(kPageSize), PROT_NONE));
  EXPECT_EQ(start(4), 2u);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
  EXPECT_EQ(state(first + 2), PageState::kLocal);
  finish();
  core_.space->anchored().forget(first, first + 4);
  ASSERT_EQ(start(1), 1u);
  EXPECT_EQ(state(first + 1), PageState::kEvicting);
}

// ---- Pages behind a stream, or given up.

class GivenUp : public EvictorTest {
 protected:
  void giveUp(PageIndex first, uint64_t count) {
    MutexLock lock(policy_->mutex());
    for (uint64_t i = 0; i < count; ++i) policy_->chooser().onGivenUp(first + i);
    policy_->chooser().streams().giveUp({first, PageCount(count)});
  }
};

TEST_F(GivenUp, GoFirst) {
  const PageIndex first = begin(64);
  giveUp(first + 40, 20);
  ASSERT_EQ(start(20), 20u);
  for (uint64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(state(first + i), i >= 40 && i < 60 ? PageState::kEvicting : PageState::kLocal) << i;
  }
  finish();
  expectFar(first + 40, first.value() + 40);
}

TEST_F(GivenUp, AreTakenAsFarAsTheBatchHasRoomAndAcrossGranules) {
  const PageIndex first = begin(600, 2);
  giveUp(first + 500, 30);
  ASSERT_EQ(start(20), 20u);
  EXPECT_EQ(state(first + 499), PageState::kLocal);
  EXPECT_EQ(state(first + 500), PageState::kEvicting);
  EXPECT_EQ(state(first + 519), PageState::kEvicting);
  EXPECT_EQ(state(first + 520), PageState::kLocal);
  ASSERT_EQ(start(11), 11u);
  EXPECT_EQ(state(first + 529), PageState::kEvicting);
  EXPECT_EQ(state(first), PageState::kEvicting) << "and one that the hand chose";
  EXPECT_EQ(state(first + 1), PageState::kLocal);
}

TEST_F(GivenUp, StayIfTheyAreToBeLocalOrHaveAHome) {
  const PageIndex first = begin(8);
  discard(first + 2);
  change(first + 1, word(first + 1), PageWord(PageState::kLocal, kFlagShadow, 1, 7));
  giveUp(first, 4);
  ASSERT_EQ(start(2), 2u);
  EXPECT_EQ(state(first), PageState::kEvicting);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
  EXPECT_EQ(state(first + 3), PageState::kEvicting);
  core_.space->placements().set(granuleOf(first), Placement::local());
  giveUp(first + 4, 2);
  EXPECT_EQ(start(2), 0u);
  EXPECT_EQ(state(first + 4), PageState::kLocal);
}

TEST_F(GivenUp, StayIfTheStreamDidNotBringThemIn) {
  const PageIndex first = begin(8);
  {
    MutexLock lock(policy_->mutex());
    policy_->chooser().onGivenUp(first + 5);
    policy_->chooser().streams().giveUp({first + 4, PageCount(2)});
  }
  ASSERT_EQ(start(1), 1u);
  EXPECT_EQ(state(first + 4), PageState::kLocal);
  EXPECT_EQ(state(first + 5), PageState::kEvicting);
}

// ---- Pages whose far copy is still good.

class Copies : public EvictorTest {};

TEST_F(Copies, AreNotWrittenAgainButForOne) {
  const PageIndex first = begin(4);
  PageWord words[4];
  for (uint64_t i = 0; i < 4; ++i) words[i] = giveCopy(first + i);
  ASSERT_EQ(start(4), 4u);
  ASSERT_EQ(tier_->requests().size(), 1u) << "to show that the server is still there";
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(1));
  EXPECT_EQ(tier_->requests()[0].run.first, words[0].frame());
  finish();
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(word(first + i), PageWord(PageState::kFar, 0, 1, words[i].index()));
    expectFar(first + i, (first + i).value());
  }
  EXPECT_EQ(core_.stats->clean_evictions.load(), 4u);
  EXPECT_EQ(tier_->held(), 4u);
  EXPECT_EQ(core_.stats->sources[0].count.load(), 0u) << "these are not probes";
  EXPECT_EQ(core_.stats->sampling_cpu_nanoseconds.load(), 0u);
}

TEST_F(Copies, AmongOthersThatAreWrittenAreNotWritten) {
  const PageIndex first = begin(6);
  for (uint64_t i = 2; i < 4; ++i) giveCopy(first + i);
  ASSERT_EQ(start(6), 6u);
  ASSERT_EQ(tier_->requests().size(), 2u);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(2));
  EXPECT_EQ(tier_->requests()[1].run.count, PageCount(2));
  finish();
  for (uint64_t i = 0; i < 6; ++i) expectFar(first + i, (first + i).value());
  EXPECT_EQ(core_.stats->clean_evictions.load(), 2u);
  EXPECT_EQ(tier_->held(), 6u);
}

TEST_F(Copies, OfPagesThatWereWrittenAreGivenUp) {
  const PageIndex first = begin(2);
  const PageWord was = giveCopy(first);
  giveCopy(first + 1);
  store(first, 1234);
  ASSERT_EQ(start(2), 2u);
  ASSERT_EQ(tier_->requests().size(), 1u);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(1));
  finish();
  expectFar(first, 1234);
  EXPECT_NE(was.state(), PageState::kFar);
  expectFar(first + 1, first.value() + 1);
  EXPECT_EQ(tier_->held(), 2u);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 1u);
}

TEST_F(Copies, TellThePolicyWhetherTheyPaid) {
  const PageIndex first = begin(2, 2);
  const auto worthKeeping = [&](PageIndex page) {
    MutexLock lock(policy_->mutex());
    return policy_->copies().worthKeeping(granuleOf(page), Arrival::kFault);
  };
  EXPECT_FALSE(worthKeeping(first));
  giveCopy(first);
  ASSERT_EQ(start(1), 1u);
  EXPECT_TRUE(worthKeeping(first)) << "one has";
  // One that the hand finds written, and one that is written just before it moves.
  giveCopy(first + 1);
  store(first + 1, 7);
  ASSERT_EQ(start(1), 1u);
  EXPECT_FALSE(worthKeeping(first)) << "one has not";
  makeLocal(first + 2, 1);
  giveCopy(first + 2);
  kernel_.before = [&, done = false](Call call, uintptr_t, Bytes) mutable {
    if (call == Call::kMove && !std::exchange(done, true)) store(first + 2, 7);
  };
  ASSERT_EQ(start(1), 1u);
  kernel_.before = nullptr;
  {
    const GranuleLock granule(*core_.space, granuleOf(first));
    MutexLock lock(policy_->mutex());
    policy_->copies().saved(granule, Arrival::kFault);
  }
  EXPECT_FALSE(worthKeeping(first)) << "two have, two have not";
}

/// A page that is written at a certain moment of its leaving is written out as it is then.
class WrittenAt : public Copies, public testing::WithParamInterface<Call> {};

TEST_P(WrittenAt, TheLastMoment) {
  const PageIndex first = begin(3);
  for (uint64_t i = 0; i < 3; ++i) giveCopy(first + i);
  uint64_t calls = 0;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    // The first scan is the hand's own look.
    if (call == GetParam() && ++calls == (call == Call::kScan ? 2 : 1)) store(first + 1, 4321);
  };
  ASSERT_EQ(start(3), 3u);
  kernel_.before = nullptr;
  finish();
  expectFar(first, first.value());
  expectFar(first + 1, 4321);
  expectFar(first + 2, first.value() + 2);
  EXPECT_EQ(tier_->held(), 3u);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Moments, WrittenAt,
                         testing::Values(Call::kReadPages, Call::kScan, Call::kMove));

TEST_F(Copies, AreWrittenAgainIfTheKernelDoesNotSayWhetherTheyWereWritten) {
  const PageIndex first = begin(2);
  for (uint64_t i = 0; i < 2; ++i) giveCopy(first + i);
  store(first, 1234);
  kernel_.fail(Call::kScan, 1);
  kernel_.fail(Call::kScan, 2);
  ASSERT_EQ(start(2), 2u);
  finish();
  expectFar(first, 1234);
  expectFar(first + 1, first.value() + 1);
  EXPECT_EQ(tier_->held(), 2u);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 0u);
}

TEST_F(Copies, OfWhichTheFirstLookFailedAreLookedAtAgain) {
  const PageIndex first = begin(2);
  for (uint64_t i = 0; i < 2; ++i) giveCopy(first + i);
  store(first, 1234);
  kernel_.fail(Call::kScan, 1);
  ASSERT_EQ(start(2), 2u);
  finish();
  expectFar(first, 1234);
  expectFar(first + 1, first.value() + 1);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 1u);
}

TEST_F(Copies, ThatCouldNotBeReadAreWrittenAgain) {
  const PageIndex first = begin(3);
  for (uint64_t i = 0; i < 3; ++i) giveCopy(first + i);
  kernel_.fail(Call::kReadPages, 1, PortOutcome::kAbsent, PageCount(1));
  ASSERT_EQ(start(3), 3u);
  finish();
  for (uint64_t i = 0; i < 3; ++i) expectFar(first + i, (first + i).value());
  EXPECT_EQ(core_.stats->clean_evictions.load(), 1u);
  EXPECT_EQ(tier_->held(), 3u);
}

TEST_F(Copies, MoveAClusterAtATime) {
  const PageIndex first = begin(40);
  for (uint64_t i = 0; i < 40; ++i) giveCopy(first + i);
  uint64_t most = 0;
  kernel_.before = [&](Call call, uintptr_t, Bytes size) {
    if (call == Call::kMove) most = std::max(most, size.value() / kPageSize);
  };
  ASSERT_EQ(start(40), 40u);
  EXPECT_EQ(most, 16u) << "as many as the evictor has seen";
  finish();
  EXPECT_EQ(core_.stats->clean_evictions.load(), 40u);
}

TEST_F(Copies, AreGivenBackWhenTheWriteThatProvesTheServerFails) {
  const PageIndex first = begin(3);
  for (uint64_t i = 0; i < 3; ++i) giveCopy(first + i);
  ASSERT_EQ(start(3), 3u);
  tier_->endAll(ErrorCode::kUnreachable);
  evictor_->advance();
  for (uint64_t i = 0; i < 3; ++i) expectLocal(first + i, (first + i).value());
  EXPECT_EQ(tier_->held(), 0u);
}

TEST_F(Copies, OfPagesThatWereRescuedOrDiscardedAreGivenBack) {
  const PageIndex first = begin(3);
  for (uint64_t i = 0; i < 3; ++i) giveCopy(first + i);
  ASSERT_EQ(start(3), 3u);
  rescue(first);
  discard(first + 1);
  finish();
  expectLocal(first, first.value());
  expectFar(first + 2, first.value() + 2);
  EXPECT_EQ(tier_->held(), 1u);
  EXPECT_EQ(core_.stats->clean_evictions.load(), 1u);
}

TEST_F(Copies, InATierThatThisBatchDoesNotWriteToProveThatOne) {
  // As in a child of fork(), whose channels open when they are needed.
  core_.fork.setServedChild();
  FakeTier& second = addTier(PageCount(8), "second");
  const PageIndex first = begin(1);
  const auto frame = second.allocate(PageCount(1));
  ASSERT_TRUE(frame);
  ASSERT_TRUE(second.write(*frame, bytesOf(first)));
  change(first, word(first), PageWord(PageState::kLocal, kFlagFarCopy, 2, frame->first.value()));
  ASSERT_TRUE(core_.port->writeProtect(addressOf(first), Bytes(kPageSize), Wake::kNo));
  ASSERT_EQ(start(1), 1u);
  EXPECT_EQ(second.requests().size(), 1u);
  second.endAll();
  evictor_->advance();
  ASSERT_TRUE(evictor_->recycle());
  expectFar(first, first.value(), 2);
}

TEST_F(Copies, WhoseServerCannotBeReachedStayLocal) {
  core_.fork.setServedChild();
  FakeTier& second = addTier(PageCount(8), "second");
  const PageIndex first = begin(1);
  const auto frame = second.allocate(PageCount(1));
  ASSERT_TRUE(frame);
  ASSERT_TRUE(second.write(*frame, bytesOf(first)));
  change(first, word(first), PageWord(PageState::kLocal, kFlagFarCopy, 2, frame->first.value()));
  ASSERT_TRUE(core_.port->writeProtect(addressOf(first), Bytes(kPageSize), Wake::kNo));
  second.opens = false;
  EXPECT_EQ(start(1), 1u);
  expectLocal(first, first.value());
  EXPECT_TRUE(second.closed());
  EXPECT_EQ(second.held(), 0u);
}

// ---- Ways out of the space.

TEST_F(EvictorTest, APinnedPageIsLeftAndTheNextOnesGo) {
  const PageIndex first = begin(6);
  kernel_.fail(Call::kMove, 1, PortOutcome::kBusy, PageCount(2));
  ASSERT_EQ(start(5), 5u);
  EXPECT_EQ(state(first + 2), PageState::kLocal);
  EXPECT_EQ(word(first + 3), PageWord(PageState::kEvicting, 0, 0, 2));
  finish();
  expectLocal(first + 2, first.value() + 2);
  for (const uint64_t i : {0, 1, 3, 4, 5}) expectFar(first + i, (first + i).value());
  EXPECT_EQ(held(), 1u);
}

TEST_F(EvictorTest, ThePagesOfForkedRelativesAreMadeItsOwnFirst) {
  const PageIndex first = begin(4);
  core_.fork.setForked();
  kernel_.fail(Call::kMove, 1, PortOutcome::kBusy, PageCount(1));
  ASSERT_EQ(start(4), 4u);
  EXPECT_EQ(kernel_.calls(Call::kUnshare), 1u);
  finish();
  for (uint64_t i = 0; i < 4; ++i) expectFar(first + i, (first + i).value());
}

/// A kernel that cannot move pages: they are closed to writers, copied and dropped.
class ByCopy : public EvictorTest {
 protected:
  void SetUp() override {
    EvictorTest::SetUp();
    kernel_.can_move = false;
    kernel_.tracks_writes = false;
  }
};

TEST_F(ByCopy, WritersAreKeptOutUntilThePagesAreGone) {
  const PageIndex first = begin(4);
  std::vector<Call> order;
  kernel_.before = [&](Call call, uintptr_t address, Bytes) {
    order.push_back(call);
    if (call == Call::kReadPages) {
      EXPECT_TRUE(kernel_.armed(addressOf(first)));
      EXPECT_TRUE(kernel_.armed(addressOf(first + 3)));
    }
    if (call == Call::kWake) {
      EXPECT_EQ(address, addressOf(first));
    }
  };
  ASSERT_EQ(start(4), 4u);
  EXPECT_EQ(order, (std::vector{Call::kWriteProtect, Call::kReadPages, Call::kDiscardUnlocked,
                                Call::kWriteProtect, Call::kWake}));
  kernel_.before = nullptr;
  finish();
  for (uint64_t i = 0; i < 4; ++i) expectFar(first + i, (first + i).value());
  EXPECT_EQ(held(), 0u);
}

TEST_F(ByCopy, ALockedPageStaysAndIsOpenAgainAndLeavesNoCopyInStaging) {
  const PageIndex first = begin(4);
  kernel_.fail(Call::kDiscardUnlocked, 1, PortOutcome::kBusy, PageCount(1));
  ASSERT_EQ(start(3), 3u);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
  EXPECT_FALSE(kernel_.armed(addressOf(first + 1)));
  EXPECT_FALSE(kernel_.present(staging_->slotAddress(3)));
  finish();
  expectLocal(first + 1, first.value() + 1);
  expectFar(first, first.value());
  expectFar(first + 3, first.value() + 3);
}

TEST_F(ByCopy, WithoutProtectionNothingIsCopied) {
  begin(1);
  // Of each turn of the policy and of the last one, that takes anything.
  for (uint64_t call = 1; call <= 16; ++call) kernel_.fail(Call::kWriteProtect, call);
  EXPECT_EQ(start(1), 0u);
  EXPECT_EQ(kernel_.calls(Call::kReadPages), 0u);
  EXPECT_EQ(kernel_.calls(Call::kDiscardUnlocked), 0u);
}

TEST_F(ByCopy, NothingLeavesThatADeviceMayWriteTo) {
  const PageIndex first = begin(2);
  kernel_.may_pin = true;
  EXPECT_EQ(start(2), 0u);
  expectLocal(first, first.value());
  EXPECT_FALSE(kernel_.armed(addressOf(first)));
  kernel_.may_pin = false;
  EXPECT_EQ(start(2), 2u);
}

/// Pages that the program may only read.
class ReadOnly : public EvictorTest {
 protected:
  PageIndex beginReadOnly(uint64_t from, uint64_t count, uint64_t pages) {
    const PageIndex first = begin(pages);
    EXPECT_TRUE(ranges_->protect(addressOf(first + from), toBytes(PageCount(count)), PROT_READ));
    return first;
  }
};

TEST_F(ReadOnly, AreCopied) {
  const PageIndex first = beginReadOnly(2, 20, 30);
  ASSERT_EQ(start(30), 30u);
  EXPECT_EQ(kernel_.calls(Call::kMove), 2u) << "what is around them";
  EXPECT_EQ(kernel_.calls(Call::kCopy), 30u + 2) << "a cluster at a time; the test's own are 30";
  finish();
  for (uint64_t i = 0; i < 30; ++i) expectFar(first + i, (first + i).value());
  EXPECT_EQ(held(), 0u);
}

TEST_F(ReadOnly, StayWhereADeviceMayWriteToThem) {
  const PageIndex first = beginReadOnly(0, 4, 4);
  kernel_.may_pin = true;
  EXPECT_EQ(start(4), 0u);
  expectLocal(first, first.value());
}

TEST_F(ReadOnly, ThatAreLockedStayAndLeaveNoCopyInStaging) {
  const PageIndex first = beginReadOnly(0, 4, 4);
  kernel_.fail(Call::kDiscardUnlocked, 1, PortOutcome::kBusy, PageCount(1));
  ASSERT_EQ(start(3), 3u);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
  EXPECT_FALSE(kernel_.present(staging_->slotAddress(3)));
  finish();
  expectLocal(first + 1, first.value() + 1);
  for (const uint64_t i : {0, 2, 3}) expectFar(first + i, (first + i).value());
}

TEST_F(ReadOnly, ThatCannotBeCopiedStay) {
  const PageIndex first = beginReadOnly(0, 2, 2);
  kernel_.fail(Call::kCopy, 1, PortOutcome::kExists);
  ASSERT_EQ(start(1), 1u);
  finish();
  expectLocal(first, first.value());
  expectFar(first + 1, first.value() + 1);
}

TEST_F(ReadOnly, ThatCannotBeReadStay) {
  const PageIndex first = beginReadOnly(0, 2, 2);
  kernel_.fail(Call::kReadPages, 1);
  ASSERT_EQ(start(1), 1u);
  finish();
  expectLocal(first, first.value());
  expectFar(first + 1, first.value() + 1);
}

TEST_F(ReadOnly, AmongOthersGoAsFarAsWasChosen) {
  const PageIndex first = beginReadOnly(2, 10, 30);
  EXPECT_EQ(start(14), 14u);
  EXPECT_EQ(state(first + 13), PageState::kEvicting);
  EXPECT_EQ(state(first + 14), PageState::kLocal);
}

// ---- Pages that are asked whether they are in use.

/// Armed pages are asked a turn later; time for that has been earned.
class Probes : public EvictorTest {
 protected:
  void SetUp() override {
    EvictorTest::SetUp();
    VictimConfig config;
    config.capacity = PageCount(4096);
    config.sampling_cpu = 1;
    usePolicy(config);
    MutexLock lock(policy_->mutex());
    policy_->chooser().onFault(PageIndex(8000), Nanoseconds(1'000'000'000));
  }
  uint32_t scoreOf(PageIndex page) {
    MutexLock lock(policy_->mutex());
    return policy_->chooser().score(page);
  }
};

TEST_F(Probes, ThoseThatAreNotWrittenGo) {
  const PageIndex first = begin(4);
  kernel_.before = [&, armed = false, asked = false](Call call, uintptr_t, Bytes size) mutable {
    if (call == Call::kWriteProtect && !std::exchange(armed, true)) {
      EXPECT_EQ(size, Bytes(4 * kPageSize)) << "one call for all";
    }
    if (call != Call::kScan || std::exchange(asked, true)) return;
    for (uint64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(word(first + i), PageWord(PageState::kLocal, kFlagProbed, 0, 0));
    }
    store(first + 2, 7);
  };
  ASSERT_EQ(start(3), 3u);
  EXPECT_EQ(scoreOf(first + 2), 4u) << "it was written";
  EXPECT_EQ(word(first + 2), PageWord(PageState::kLocal, kFlagProbed, 0, 0)) << "and asked again";
  EXPECT_TRUE(kernel_.armed(addressOf(first + 2)));
  EXPECT_GE(core_.stats->sampling_cpu_nanoseconds.load(), 800u) << "the write fault";
  EXPECT_EQ(core_.stats->sources[0].count.load(), 4u);
  EXPECT_EQ(core_.stats->sources[0].cpu_nanoseconds.load(),
            core_.stats->sampling_cpu_nanoseconds.load());
  {
    // What asking and arming took, and the write fault, are paid for from the policy's budget.
    MutexLock lock(policy_->mutex());
    EXPECT_EQ(policy_->chooser().stats().probe_spent.value(),
              core_.stats->sampling_cpu_nanoseconds.load());
  }
  kernel_.before = nullptr;
  finish();
  expectFar(first, first.value());
}

TEST_F(Probes, AnAnswerIsHeardOnce) {
  const PageIndex first = begin(2);
  for (uint64_t i = 0; i < 2; ++i) {
    change(first + i, word(first + i), PageWord(PageState::kLocal, kFlagProbed, 0, 0));
  }
  ASSERT_TRUE(core_.port->writeProtect(addressOf(first), Bytes(2 * kPageSize), Wake::kNo));
  {
    MutexLock lock(policy_->mutex());
    policy_->chooser().onSample(first, 3);
  }
  store(first, 7);
  ASSERT_EQ(start(1), 1u);
  EXPECT_EQ(word(first), PageWord(PageState::kLocal, 0, 0, 0)) << "it is busy, and not asked again";
  EXPECT_EQ(state(first + 1), PageState::kEvicting);
}

TEST_F(Probes, OnlyPagesThatAreToBeAskedAreArmed) {
  const PageIndex first = begin(8);
  {
    MutexLock lock(policy_->mutex());
    for (const uint64_t busy : {0, 1, 4, 5, 6, 7}) policy_->chooser().onSample(first + busy, 15);
  }
  ASSERT_EQ(start(2), 2u);
  for (const uint64_t busy : {0, 1, 4, 5, 6, 7}) {
    EXPECT_FALSE(kernel_.armed(addressOf(first + busy))) << busy;
    EXPECT_FALSE(word(first + busy).has(kFlagProbed)) << busy;
  }
  EXPECT_EQ(state(first + 3), PageState::kEvicting);
}

TEST_F(Probes, NobodyIsAskedWhereAWriteWouldBeAFault) {
  kernel_.tracks_writes = false;
  const PageIndex first = begin(4);
  ASSERT_EQ(start(4), 4u);
  EXPECT_EQ(kernel_.calls(Call::kWriteProtect), 0u);
  EXPECT_EQ(state(first), PageState::kEvicting);
}

TEST_F(Probes, PagesThatCannotBeArmedAreNotTakenForArmed) {
  const PageIndex first = begin(2);
  kernel_.fail(Call::kWriteProtect, 1);
  bool seen = false;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    if (call != Call::kWriteProtect || kernel_.calls(Call::kWriteProtect) != 1) return;
    seen = true;
    EXPECT_FALSE(word(first).has(kFlagProbed));
  };
  ASSERT_EQ(start(2), 2u);
  EXPECT_TRUE(seen);
}

TEST_F(Probes, PagesWithACopyHaveBeenArmedSinceTheyCame) {
  const PageIndex first = begin(4);
  giveCopy(first + 1);
  const uint64_t before = kernel_.calls(Call::kWriteProtect);
  std::vector<uintptr_t> armed;
  kernel_.before = [&](Call call, uintptr_t address, Bytes) {
    if (call == Call::kWriteProtect) armed.push_back(address);
    // Between the hand's look and the arming: to arm it once more would hide this.
    if (call == Call::kWriteProtect && armed.size() == 1) store(first + 1, 7);
  };
  ASSERT_EQ(start(3), 3u);
  kernel_.before = nullptr;
  EXPECT_EQ(before, 1u);
  ASSERT_GE(armed.size(), 2u);
  EXPECT_EQ(armed[0], addressOf(first));
  EXPECT_EQ(armed[1], addressOf(first + 2));
  EXPECT_EQ(word(first + 1), PageWord(PageState::kLocal, kFlagProbed, 0, 0));
  EXPECT_EQ(load(first + 1), 7u);
  finish();
  EXPECT_EQ(tier_->held(), 3u);
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
