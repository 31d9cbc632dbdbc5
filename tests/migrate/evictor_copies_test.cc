// SPDX-License-Identifier: Apache-2.0
// How the evictor gets a page's bytes out of the space: not at all where the copy in far memory is
// still good, else by moving the page, or by copying it where it cannot be moved.
#include "tests/migrate/evictor_fixture.h"

namespace tidepool {
namespace {

// ---- Pages whose far copy is still good.

class Copies : public EvictorTest {};

TEST_F(Copies, AreNotWrittenAgainButForOne) {
  const PageIndex first = begin(4);
  PageWord words[4];
  for (uint64_t i = 0; i < 4; ++i) words[i] = giveCopy(first + i);
  ASSERT_EQ(start(4), 4u);
  ASSERT_EQ(tier_->requests().size(), 1u) << "to show that the server is still there";
  EXPECT_EQ(tier_->again, 1u) << "others may be reading that frame";
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
  ASSERT_EQ(tier_->requests().size(), 1u) << "of all four";
  EXPECT_EQ(tier_->again, 0u);
  EXPECT_EQ(tier_->requests()[0].run.count, PageCount(4));
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

TEST_F(Copies, HereAndThereInAGranuleAreAskedAboutTogether) {
  const PageIndex first = begin(40);
  for (uint64_t i = 0; i < 40; i += 2) giveCopy(first + i);
  store(first + 20, 1234);
  uint64_t reads = 0, scans = 0;
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    reads += call == Call::kReadPages ? 1 : 0;
    scans += call == Call::kScan ? 1 : 0;
    // The hand's own look is over.
    if (call == Call::kReadPages) store(first + 30, 4321);
  };
  ASSERT_EQ(start(40), 40u);
  kernel_.before = nullptr;
  EXPECT_EQ(reads, 1u);
  EXPECT_EQ(scans, 2u);
  EXPECT_EQ(tier_->requests().size(), 1u) << "of the others, wherever they lay";
  finish();
  for (uint64_t i = 0; i < 40; ++i) {
    expectFar(first + i, i == 20 ? 1234 : i == 30 ? 4321 : (first + i).value());
  }
  EXPECT_EQ(core_.stats->clean_evictions.load(), 18u);
  EXPECT_EQ(tier_->held(), 40u);
}

TEST_F(Copies, MoveInOnePiece) {
  const PageIndex first = begin(40);
  for (uint64_t i = 0; i < 40; ++i) giveCopy(first + i);
  uint64_t most = 0;
  kernel_.before = [&](Call call, uintptr_t, Bytes size) {
    if (call == Call::kMove) most = std::max(most, size.value() / kPageSize);
  };
  ASSERT_EQ(start(40), 40u);
  EXPECT_EQ(most, 40u);
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
  giveCopy(first, 2);
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
  giveCopy(first, 2);
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

// Each look at thousands of pinned pages would interrupt the other processors thousands of times.
TEST_F(EvictorTest, PinnedPagesAreTriedAgainWhenLittleTimeGoesIntoThem) {
  const PageIndex first = begin(4);
  kernel_.before = [&](Call call, uintptr_t, Bytes) {
    if (call == Call::kMove) clock_.advance(Nanoseconds(1'000'000));
  };
  kernel_.fail(Call::kMove, 1, PortOutcome::kBusy, PageCount(1));
  ASSERT_EQ(start(4), 3u);
  finish();
  const uint64_t tried = kernel_.calls(Call::kMove);
  clock_.advance(Nanoseconds(18'000'000));
  EXPECT_EQ(start(1), 0u);
  EXPECT_EQ(kernel_.calls(Call::kMove), tried);
  EXPECT_EQ(state(first + 1), PageState::kLocal);
  clock_.advance(Nanoseconds(2'000'000));
  EXPECT_EQ(start(1), 1u);
  finish();
  expectFar(first + 1, first.value() + 1);
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

TEST_F(ByCopy, CopiesOfPagesThatStayAreFreed) {
  begin(4);
  // The first page can be discarded, and then none: they are locked.
  kernel_.fail(Call::kDiscardUnlocked, 1, PortOutcome::kBusy, PageCount(1));
  for (uint64_t call = 2; call <= 32; ++call) kernel_.fail(Call::kDiscardUnlocked, call);
  ASSERT_EQ(start(4), 1u);
  EXPECT_TRUE(kernel_.present(staging_->slotAddress(0)));
  for (const uint64_t slot : {1, 2, 3}) {
    EXPECT_FALSE(kernel_.present(staging_->slotAddress(slot))) << slot;
  }
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
  kernel_.before = [&](Call, uintptr_t, Bytes) { clock_.advance(Nanoseconds(1'000'000)); };
  kernel_.may_pin = true;
  EXPECT_EQ(start(2), 0u);
  expectLocal(first, first.value());
  EXPECT_FALSE(kernel_.armed(addressOf(first)));
  kernel_.may_pin = false;
  EXPECT_EQ(start(2), 2u) << "at once, however long the attempts took";
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

}  // namespace
}  // namespace tidepool
