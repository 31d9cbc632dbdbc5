// SPDX-License-Identifier: Apache-2.0
// The evacuator's protocol, step by step: what is moved where, in which slices, and what becomes of
// pages and frames when the program, a tier or the budget comes in between. Direct tiers:
// evacuator_direct_test.cc.
#include "runtime/migrate/fabric/evacuator.h"

#include "tests/migrate/fake_core.h"

namespace tidepool {
namespace {

using Progress = Evacuator::Progress;
constexpr Nanoseconds kLong(1'000'000'000);

class EvacuatorTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    from_ = &addTier(PageCount(2048), "from");
    evacuator_ = std::move(*Evacuator::create(core_, *mover_));
  }
  /// So many far pages in the first tier, which is closed then.
  PageIndex begin(uint64_t pages, uint64_t granules = 1) {
    const PageIndex first = allocate(granules);
    makeFar(first, pages);
    from_->close();
    return first;
  }
  Progress moveOff(Nanoseconds slice = kLong) { return evacuator_->moveOff(1, slice); }
  /// The page is far in that tier, with these bytes, and not there.
  void expectFar(PageIndex page, uint64_t value, uint8_t tier) {
    ASSERT_EQ(word(page), PageWord(PageState::kFar, 0, tier, word(page).index()));
    EXPECT_EQ(static_cast<FakeTier&>(core_.tiers.tier(tier)).word(word(page).frame()), value);
    EXPECT_FALSE(present(page));
  }
  void expectFar(PageIndex page, uint8_t tier) { expectFar(page, page.value(), tier); }
  void expectLocal(PageIndex page) {
    // Nobody has asked for it: that it is used has still to be shown.
    EXPECT_EQ(word(page).state(), PageState::kLocal);
    EXPECT_EQ(word(page).tier(), 0);
    ASSERT_TRUE(present(page));
    EXPECT_EQ(load(page), page.value());
  }
  /// A local page with a copy in the first tier.
  void makeCopy(PageIndex page) {
    makeLocal(page, 1);
    const auto frame = from_->allocate(PageCount(1));
    ASSERT_TRUE(frame);
    change(page, word(page), PageWord(PageState::kLocal, kFlagFarCopy, 1, frame->first.value()));
  }
  uint64_t errors() const { return core_.stats->error_count.load(); }
  uint64_t lost() const { return core_.stats->lost_pages.load(); }
  // What others say of local memory.
  void sayFarIsExhausted(bool is) { RoomState::Supply(core_.room).setFarExhausted(is); }
  void sayNothingLeaves(bool is) { RoomState::Supply(core_.room).setNothingLeaves(is); }

  FakeTier* from_ = nullptr;
  std::unique_ptr<Evacuator> evacuator_;
};

TEST_F(EvacuatorTest, NothingThereIsDoneAtOnce) {
  EXPECT_EQ(moveOff(Nanoseconds()), Progress::kDone);
  EXPECT_EQ(kernel_.calls(Call::kDiscard), 1u) << "the buffer's memory";
}

TEST_F(EvacuatorTest, MovesToAnotherTier) {
  FakeTier& to = addTier();
  const PageIndex first = begin(8);
  std::vector<FrameRun> runs;
  from_->before = [&](FrameRun run, bool writes) {
    EXPECT_FALSE(writes);
    runs.push_back(run);
    for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(state(first + i), PageState::kFetching);
    EXPECT_FALSE(kernel_.touch(addressOf(first + 3)));
  };
  uint64_t writes = 0;
  to.before = [&](FrameRun run, bool) {
    ++writes;
    EXPECT_EQ(run.count, PageCount(8));
  };
  EXPECT_EQ(moveOff(), Progress::kDone);
  ASSERT_EQ(runs.size(), 1u) << "frames in a row are one read";
  EXPECT_EQ(runs[0].count, PageCount(8));
  EXPECT_EQ(writes, 1u);
  for (uint64_t i = 0; i < 8; ++i) expectFar(first + i, 2);
  EXPECT_FALSE(kernel_.waits(addressOf(first + 3))) << "who waited looks anew";
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(to.held(), 8u);
  EXPECT_EQ(held(), 0u);
}

TEST_F(EvacuatorTest, FramesThatAreNotInARowAreReadEachByItself) {
  addTier();
  const PageIndex first = allocate();
  const auto gap = from_->allocate(PageCount(1));
  makeFar(first, 2);
  ASSERT_TRUE(from_->allocate(PageCount(1)));
  makeFar(first + 2, 3);
  from_->release({gap->first, PageCount(1)});
  from_->release({gap->first + 3, PageCount(1)});
  std::vector<uint64_t> counts;
  from_->before = [&](FrameRun run, bool) { counts.push_back(run.count.value()); };
  EXPECT_EQ(moveOff(), Progress::kDone);
  EXPECT_EQ(counts, (std::vector<uint64_t>{2, 3}));
  for (uint64_t i = 0; i < 5; ++i) expectFar(first + i, 2);
}

TEST_F(EvacuatorTest, LeavesAloneWhatIsElsewhere) {
  FakeTier& to = addTier();
  const PageIndex first = allocate();
  makeFar(first, 1);
  makeFar(first + 1, 1, 2);
  makeLocal(first + 2, 1);
  const PageWord elsewhere = word(first + 1);
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectFar(first, 2);
  EXPECT_EQ(word(first + 1), elsewhere);
  expectLocal(first + 2);
  EXPECT_EQ(to.held(), 2u);
}

TEST_F(EvacuatorTest, OfALocalPageItDropsTheCopy) {
  const PageIndex first = allocate();
  makeCopy(first);
  EXPECT_EQ(moveOff(), Progress::kDone);
  EXPECT_EQ(word(first), PageWord(PageState::kLocal, 0, 0, 0));
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(load(first), first.value());
}

TEST_F(EvacuatorTest, WhatIsOnItsWayIsWaitedFor) {
  addTier();
  const PageIndex first = begin(1);
  const PageWord far = word(first);
  const PageWord fetching(PageState::kFetching, 0, 1, far.index());
  change(first, far, fetching);
  EXPECT_EQ(moveOff(), Progress::kStuck);
  EXPECT_EQ(word(first), fetching);
  change(first, fetching, far);
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectFar(first, 2);
}

TEST_F(EvacuatorTest, SpreadsOverTiersAndTheRestComesToLocalMemory) {
  FakeTier& small = addTier(PageCount(3), "small");
  FakeTier& other = addTier(PageCount(2), "other");
  const PageIndex first = begin(8);
  EXPECT_FALSE(kernel_.touch(addressOf(first + 6)));
  EXPECT_EQ(moveOff(), Progress::kDone);
  for (uint64_t i = 0; i < 3; ++i) expectFar(first + i, 2);
  for (uint64_t i = 3; i < 5; ++i) expectFar(first + i, 3);
  for (uint64_t i = 5; i < 8; ++i) expectLocal(first + i);
  EXPECT_FALSE(kernel_.waits(addressOf(first + 6)));
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(small.held(), 3u);
  EXPECT_EQ(other.held(), 2u);
}

TEST_F(EvacuatorTest, ATierItLeavesTakesNothingEvenIfItIsOpen) {
  const PageIndex first = begin(4);
  from_->reopen();
  EXPECT_EQ(moveOff(), Progress::kDone);
  for (uint64_t i = 0; i < 4; ++i) expectLocal(first + i);
}

TEST_F(EvacuatorTest, APageThatIsDiscardedMeanwhileGivesBothItsFramesBack) {
  FakeTier& to = addTier();
  const PageIndex first = begin(3);
  from_->before = [&](FrameRun, bool) { discard(first + 1); };
  to.before = [&](FrameRun, bool) { discard(first + 2); };
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectFar(first, 2);
  EXPECT_EQ(word(first + 1), PageWord());
  EXPECT_EQ(word(first + 2), PageWord());
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(to.held(), 1u);
}

TEST_F(EvacuatorTest, APageThatIsDiscardedIsNotInstalledInLocalMemory) {
  const PageIndex first = begin(3);
  setLimit(2);
  from_->before = [&](FrameRun, bool) { discard(first); };
  EXPECT_EQ(moveOff(), Progress::kDone) << "it takes no room";
  EXPECT_EQ(word(first), PageWord());
  EXPECT_FALSE(present(first));
  expectLocal(first + 1);
  expectLocal(first + 2);
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(from_->held(), 0u);
}

TEST_F(EvacuatorTest, APageThatCannotBeInstalledWasUnmappedByTheProgram) {
  const PageIndex first = begin(3);
  kernel_.fail(Call::kCopy, 2, PortOutcome::kInvalid);
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectLocal(first);
  EXPECT_EQ(word(first + 1), PageWord());
  expectLocal(first + 2);
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(from_->held(), 0u);
}

TEST_F(EvacuatorTest, APageThatIsDiscardedWhenItCannotBeReadGivesItsFrameBack) {
  addTier();
  const PageIndex first = begin(2);
  from_->read_error = ErrorCode::kTimedOut;
  from_->before = [&](FrameRun, bool) { discard(first); };
  EXPECT_EQ(moveOff(), Progress::kStuck);
  EXPECT_EQ(word(first), PageWord());
  expectFar(first + 1, 1);
  EXPECT_EQ(from_->held(), 1u);
}

TEST_F(EvacuatorTest, WhatCannotBeReadStays) {
  FakeTier& to = addTier();
  const PageIndex first = begin(2);
  for (const ErrorCode code : {ErrorCode::kTimedOut, ErrorCode::kUnreachable, ErrorCode::kIo}) {
    from_->read_error = code;
    EXPECT_FALSE(kernel_.touch(addressOf(first)));
    EXPECT_EQ(moveOff(), Progress::kStuck);
    for (uint64_t i = 0; i < 2; ++i) expectFar(first + i, 1);
    EXPECT_FALSE(kernel_.waits(addressOf(first))) << "who waits has it fetched";
  }
  EXPECT_EQ(from_->held(), 2u);
  EXPECT_EQ(to.held(), 0u);
  EXPECT_EQ(lost(), 0u);
  from_->read_error = {};
  EXPECT_EQ(moveOff(), Progress::kDone);
}

TEST_F(EvacuatorTest, AfterAReadThatFailsNoOtherIsTried) {
  addTier();
  const PageIndex first = allocate();
  makeFar(first, 1);
  ASSERT_TRUE(from_->allocate(PageCount(1)));
  makeFar(first + 1, 1);
  uint64_t reads = 0;
  from_->before = [&](FrameRun, bool) {
    from_->read_error = reads++ == 0 ? ErrorCode::kTimedOut : ErrorCode{};
  };
  const Nanoseconds slice(10);
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    if (call == Call::kWake) clock_.advance(slice);
  };
  EXPECT_EQ(moveOff(slice), Progress::kMoved);
  EXPECT_EQ(reads, 1u);
  expectFar(first, 1);
  expectFar(first + 1, 1);
}

TEST_F(EvacuatorTest, WhatIsLostIsPoisoned) {
  for (const ErrorCode code : {ErrorCode::kLost, ErrorCode::kStaleEpoch, ErrorCode::kPermission}) {
    from_->reopen();
    from_->before = nullptr;
    const PageIndex first = begin(3);
    const uint64_t before = lost();
    from_->read_error = code;
    from_->before = [&](FrameRun, bool) {
      discard(first + 1);
      EXPECT_FALSE(kernel_.touch(addressOf(first)));
    };
    EXPECT_EQ(moveOff(), Progress::kDone);
    for (const uint64_t i : {0, 2}) {
      EXPECT_EQ(word(first + i), PageWord(PageState::kLost, 0, 0, 0));
      EXPECT_TRUE(kernel_.poisoned(addressOf(first + i)));
    }
    EXPECT_FALSE(kernel_.waits(addressOf(first)));
    EXPECT_EQ(word(first + 1), PageWord());
    EXPECT_FALSE(kernel_.poisoned(addressOf(first + 1)));
    EXPECT_EQ(lost() - before, 2u);
    EXPECT_EQ(errors(), 1u) << "it is said once";
    EXPECT_EQ(from_->held(), 0u);
  }
}

TEST_F(EvacuatorTest, AWriteThatFailsClosesTheTierAndTheRestGoesElsewhere) {
  FakeTier& to = addTier(PageCount(64), "broken");
  const PageIndex first = begin(4);
  to.write_error = ErrorCode::kUnreachable;
  EXPECT_EQ(moveOff(), Progress::kDone);
  for (uint64_t i = 0; i < 4; ++i) expectLocal(first + i);
  EXPECT_TRUE(to.closed());
  EXPECT_EQ(to.held(), 0u);
  EXPECT_EQ(from_->held(), 0u);
  EXPECT_EQ(held(), 4u);
  EXPECT_EQ(errors(), 1u);
}

TEST_F(EvacuatorTest, OfTwoWritesTheSecondMayFail) {
  FakeTier& small = addTier(PageCount(2), "small");
  FakeTier& broken = addTier(PageCount(64), "broken");
  const PageIndex first = begin(4);
  broken.write_error = ErrorCode::kIo;
  setLimit(1);
  EXPECT_FALSE(kernel_.touch(addressOf(first + 3)));
  EXPECT_EQ(moveOff(), Progress::kStuck);
  expectFar(first, 2);
  expectFar(first + 1, 2);
  expectLocal(first + 2);
  expectFar(first + 3, 1);
  EXPECT_FALSE(kernel_.waits(addressOf(first + 3))) << "it stays, and can be fetched";
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(from_->held(), 1u);
  EXPECT_EQ(small.held(), 2u);
  EXPECT_EQ(broken.held(), 0u);
}

TEST_F(EvacuatorTest, ATierThatIsClosedMeanwhileIsNotSpokenOf) {
  FakeTier& to = addTier(PageCount(64), "closing");
  begin(1);
  to.write_error = ErrorCode::kUnreachable;
  to.before = [&](FrameRun, bool) { to.close(); };
  EXPECT_EQ(moveOff(), Progress::kDone);
  EXPECT_EQ(errors(), 0u);
}

// ---- Room.

TEST_F(EvacuatorTest, WithoutRoomNothingIsRead) {
  FakeTier& full = addTier(PageCount(4), "full");
  ASSERT_TRUE(full.allocate(PageCount(4)));
  const PageIndex first = begin(4);
  setLimit(0);
  from_->before = [](FrameRun, bool) { ADD_FAILURE() << "it could not be put anywhere"; };
  EXPECT_EQ(moveOff(), Progress::kStuck);
  full.release({FrameIndex(0), PageCount(1)});
  full.close();
  EXPECT_EQ(moveOff(), Progress::kStuck) << "a closed tier takes nothing";
  for (uint64_t i = 0; i < 4; ++i) expectFar(first + i, 1);
  from_->before = nullptr;
  full.reopen();
  sayFarIsExhausted(true);
  EXPECT_EQ(moveOff(), Progress::kStuck) << "one has gone, three are left";
  expectFar(first, 2);
  for (uint64_t i = 1; i < 4; ++i) expectFar(first + i, 1);
}

TEST_F(EvacuatorTest, LocalMemoryTakesAsMuchAsTheBudgetHas) {
  const PageIndex first = begin(5);
  setLimit(3);
  EXPECT_EQ(moveOff(), Progress::kStuck);
  for (uint64_t i = 0; i < 3; ++i) expectLocal(first + i);
  for (uint64_t i = 3; i < 5; ++i) expectFar(first + i, 1);
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(moveOff(), Progress::kStuck);
  setLimit(5);
  EXPECT_EQ(moveOff(), Progress::kDone);
  for (uint64_t i = 0; i < 5; ++i) expectLocal(first + i);
}

/// The other tier has room when asked, and none when it comes to it: another process was faster.
class NoRoomNow : public EvacuatorTest {
 protected:
  void SetUp() override {
    EvacuatorTest::SetUp();
    other_ = &addTier(PageCount(4), "other");
    first_ = begin(2);
    setLimit(0);
    from_->before = [this](FrameRun, bool writes) {
      if (!writes && other_->used() < other_->capacity()) taken_ = *other_->allocate(PageCount(4));
    };
    // After the pages were given back.
    kernel_.before = [this](Call call, uintptr_t, Bytes) {
      if (call != Call::kWake || taken_.count == PageCount()) return;
      other_->release(taken_);
      taken_ = {};
    };
  }
  FakeTier* other_ = nullptr;
  PageIndex first_;
  FrameRun taken_{};
};

TEST_F(NoRoomNow, ItWaitsForLocalMemoryToBeMadeRoomIn) {
  EXPECT_EQ(moveOff(), Progress::kWaits);
  expectFar(first_, 1);
  kernel_.before = nullptr;
  from_->before = nullptr;
  EXPECT_EQ(moveOff(), Progress::kDone) << "it goes on where it was";
}

TEST_F(NoRoomNow, ItDoesNotWaitWhileNothingCanLeave) {
  sayNothingLeaves(true);
  EXPECT_EQ(moveOff(), Progress::kStuck);
}

TEST_F(NoRoomNow, ItDoesNotWaitWhileFarMemoryIsExhausted) {
  sayFarIsExhausted(true);
  EXPECT_EQ(moveOff(), Progress::kStuck);
}

TEST_F(NoRoomNow, ItDoesNotWaitWhileThereIsRoom) {
  from_->before = nullptr;
  setLimit(1);
  from_->read_error = ErrorCode::kTimedOut;
  EXPECT_EQ(moveOff(), Progress::kStuck);
}

TEST_F(NoRoomNow, ItDoesNotWaitForAGranuleThatHasNothingThere) {
  // The hand comes to this one first, and goes on.
  const PageIndex second = allocate();
  makeLocal(second, 1);
  discard(first_, 2);
  from_->reopen();
  makeFar(second + kPagesPerGranule - 1, 1);
  from_->close();
  EXPECT_EQ(moveOff(), Progress::kWaits);
  from_->before = nullptr;
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectFar(second + kPagesPerGranule - 1, 2);
}

// ---- Slices and turns.

TEST_F(EvacuatorTest, StopsWhenItsTimeIsUpAndGoesOnThere) {
  addTier();
  const PageIndex first = allocate(3);
  for (uint64_t g = 0; g < 3; ++g) makeFar(first + g * kPagesPerGranule, 2);
  std::vector<uint64_t> reads;
  from_->before = [&](FrameRun run, bool) {
    reads.push_back(run.first.value());
    clock_.advance(Nanoseconds(10));
  };
  const uint64_t start = word(first).index();
  EXPECT_EQ(moveOff(Nanoseconds()), Progress::kMoved);
  EXPECT_TRUE(reads.empty());
  EXPECT_EQ(moveOff(Nanoseconds(10)), Progress::kMoved);
  EXPECT_EQ(reads, (std::vector<uint64_t>{start}));
  EXPECT_EQ(moveOff(Nanoseconds(11)), Progress::kDone) << "begun in time";
  EXPECT_EQ(reads.size(), 3u);
  for (uint64_t g = 0; g < 3; ++g) expectFar(first + g * kPagesPerGranule, 2);
}

TEST_F(EvacuatorTest, TheHandGoesOnFromWhereItsTimeWasUp) {
  addTier();
  const PageIndex first = allocate(2);
  makeFar(first, 1);
  makeFar(first + kPagesPerGranule, 1);
  from_->before = [&](FrameRun run, bool) {
    from_->read_error = run.first == word(first).frame() ? ErrorCode::kTimedOut : ErrorCode{};
    clock_.advance(Nanoseconds(10));
  };
  EXPECT_EQ(moveOff(Nanoseconds(10)), Progress::kMoved);
  EXPECT_EQ(from_->held(), 2u);
  EXPECT_EQ(moveOff(Nanoseconds(10)), Progress::kMoved);
  expectFar(first, 1);
  expectFar(first + kPagesPerGranule, 2);
}

TEST_F(EvacuatorTest, ATurnThatMovedSomethingIsFollowedByAnother) {
  addTier();
  const PageIndex first = allocate(2);
  makeFar(first, 1);
  makeFar(first + kPagesPerGranule, 1);
  uint64_t reads = 0;
  from_->before = [&](FrameRun, bool) {
    from_->read_error = reads++ == 0 ? ErrorCode::kTimedOut : ErrorCode{};
  };
  EXPECT_EQ(moveOff(), Progress::kDone);
  EXPECT_EQ(reads, 3u);
}

TEST_F(EvacuatorTest, WhatMovedInAnEarlierTurnDoesNotCountInTheNext) {
  addTier();
  const PageIndex first = allocate(2);
  makeFar(first, 1);
  makeFar(first + kPagesPerGranule, 1);
  uint64_t reads = 0;
  from_->before = [&](FrameRun run, bool) {
    ++reads;
    from_->read_error = run.first == word(first).frame() ? ErrorCode::kTimedOut : ErrorCode{};
  };
  EXPECT_EQ(moveOff(), Progress::kStuck);
  EXPECT_EQ(reads, 3u) << "one more turn, and no third";
  EXPECT_EQ(moveOff(), Progress::kStuck);
  EXPECT_EQ(reads, 4u);
}

TEST_F(EvacuatorTest, ReachesTheSpacesLastPage) {
  addTier();
  const PageIndex first = allocate(2);
  makeFar(first + 2 * kPagesPerGranule - 1, 1);
  EXPECT_EQ(moveOff(), Progress::kDone);
  expectFar(first + 2 * kPagesPerGranule - 1, 2);
}

// ---- A tier that is lost, or the end of it.

TEST_F(EvacuatorTest, LosesWhatLiesAtAFrameOrBeyond) {
  addTier();
  const PageIndex first = allocate(2);
  makeFar(first, 3);
  makeFar(first + 3, 1, 2);
  makeFar(first + 2 * kPagesPerGranule - 1, 1);
  makeCopy(first + 4);
  makeLocal(first + 5, 1);
  const PageIndex last = first + 2 * kPagesPerGranule - 1;
  EXPECT_FALSE(kernel_.touch(addressOf(last)));
  EXPECT_EQ(evacuator_->lose(1, word(first + 1).frame()), 3u);
  expectFar(first, 1);
  for (const PageIndex page : {first + 1, first + 2, last}) {
    EXPECT_EQ(word(page), PageWord(PageState::kLost, 0, 0, 0));
    EXPECT_TRUE(kernel_.poisoned(addressOf(page)));
  }
  EXPECT_FALSE(kernel_.waits(addressOf(last)));
  expectFar(first + 3, 2);
  EXPECT_EQ(word(first + 4), PageWord(PageState::kLocal, 0, 0, 0)) << "only its copy is lost";
  EXPECT_EQ(load(first + 4), (first + 4).value());
  expectLocal(first + 5);
  EXPECT_EQ(from_->held(), 1u);
  EXPECT_EQ(lost(), 3u);
}

TEST_F(EvacuatorTest, WhatIsOnItsWayFromALostTierIsLeftToWhoFetchesIt) {
  const PageIndex first = begin(1);
  const PageWord fetching(PageState::kFetching, 0, 1, word(first).index());
  change(first, word(first), fetching);
  EXPECT_EQ(evacuator_->lose(1, FrameIndex(0)), 0u);
  EXPECT_EQ(word(first), fetching);
  EXPECT_EQ(from_->held(), 1u);
}

}  // namespace
}  // namespace tidepool
