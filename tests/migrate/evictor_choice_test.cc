// SPDX-License-Identifier: Apache-2.0
// Which pages the evictor takes, and to which tier they go: by where they are wanted, whether the
// program is through with them, and what it learns by asking.
#include "tests/migrate/evictor_fixture.h"

namespace tidepool {
namespace {

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

}  // namespace
}  // namespace tidepool
