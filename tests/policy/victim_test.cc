// SPDX-License-Identifier: Apache-2.0
// The victim chooser, alone and inside the engine model of the simulator, over traces made here
// from a seed.
#include "runtime/policy/victim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "bench/policy_engine.h"

namespace tidepool {
namespace {

using bench::Counts;
using bench::EngineModel;

constexpr uint32_t kWrite = 1;

VictimConfig configOf(uint64_t capacity) {
  VictimConfig config;
  config.capacity = PageCount(capacity);
  return config;
}

class VictimTest : public ::testing::Test {
 protected:
  std::span<std::byte> memory() { return std::as_writable_bytes(std::span(bytes_)); }
  std::vector<uint8_t> bytes_ =
      std::vector<uint8_t>(VictimChooser::memoryFor(PageCount(4096)).value());
};

TEST_F(VictimTest, AnUnknownPageIsProbedIfThatCanBePaidForElseGoes) {
  VictimChooser chooser(configOf(256), memory());
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kNotArmed), Verdict::kEvict);
  chooser.onFault(PageIndex(9), Nanoseconds(1'000'000));
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kNotArmed), Verdict::kProbe);
  EXPECT_EQ(chooser.classify(PageIndex(3), WriteBit::kClean), Verdict::kEvict);
}

TEST_F(VictimTest, EveryPageGoesInTheEndWhenNothingIsSeen) {
  VictimChooser chooser(configOf(256), memory());
  for (WriteBit answer : {WriteBit::kNotArmed, WriteBit::kClean}) {
    chooser.onSample(PageIndex(9), 40);
    EXPECT_EQ(chooser.score(PageIndex(9)), VictimChooser::kMaxScore);
    uint32_t visits = 0;
    while (chooser.classify(PageIndex(9), answer) != Verdict::kEvict) ++visits;
    EXPECT_LE(visits, VictimChooser::kMaxScore + 1);
  }
}

TEST_F(VictimTest, EvenPagesAlwaysWrittenGoWhenTheHandWouldSpin) {
  VictimConfig config = configOf(64);
  config.sampling_cpu = 1000;  // every answer can be paid for
  VictimChooser chooser(config, memory());
  chooser.onFault(PageIndex(0), Nanoseconds(1'000'000'000));
  uint64_t visits = 0;
  bool evicted = false;
  for (; !evicted && visits < 100'000; ++visits) {
    evicted = chooser.classify(PageIndex(visits % 64), WriteBit::kWritten) == Verdict::kEvict;
  }
  EXPECT_TRUE(evicted);
}

TEST_F(VictimTest, ABusyPageIsAskedAboutEverMoreRarely) {
  VictimChooser chooser(configOf(256), memory());
  chooser.onFault(PageIndex(1), Nanoseconds(1'000'000'000));
  WriteBit answer = WriteBit::kNotArmed;
  uint32_t answers = 0;
  for (int turn = 0; turn < 120; ++turn) {
    const Verdict verdict = chooser.classify(PageIndex(1), answer);
    ASSERT_NE(verdict, Verdict::kEvict);
    answers += answer == WriteBit::kWritten;
    answer = verdict == Verdict::kProbe ? WriteBit::kWritten : WriteBit::kNotArmed;
  }
  EXPECT_GE(answers, 8u);
  EXPECT_LE(answers, 24u);
}

TEST_F(VictimTest, ProbesStopWhenTheBudgetIsSpent) {
  VictimChooser chooser(configOf(256), memory());
  // 1 % of a millisecond is 10 us: half a dozen pages that turn out written.
  chooser.onFault(PageIndex(4000), Nanoseconds(1'000'000));
  for (uint64_t i = 0; i < 100; ++i) {
    const PageIndex page(i * 7);
    if (chooser.classify(page, WriteBit::kNotArmed) == Verdict::kProbe) {
      chooser.chargeProbes(Nanoseconds(1000));
      chooser.classify(page, WriteBit::kWritten);
    }
  }
  EXPECT_GE(chooser.stats().probe_spent, Nanoseconds(10'000));
  EXPECT_LE(chooser.stats().probe_spent, Nanoseconds(10'000 + 1800));
  EXPECT_LE(chooser.stats().probes, 14u);  // two each: asked, and armed again
}

TEST_F(VictimTest, NoProbesWithoutSampling) {
  VictimConfig off = configOf(256);
  off.sampling_cpu = 0;
  VictimChooser chooser(off, memory());
  for (uint64_t i = 0; i < 1000; ++i) {
    chooser.onFault(PageIndex(i * 3 % 4096), Nanoseconds(i * 1'000'000));
    EXPECT_NE(chooser.classify(PageIndex(i * 3 % 4096), WriteBit::kNotArmed), Verdict::kProbe);
  }
}

// The score of page 1 when it returns after `between` other evictions.
uint32_t scoreAfterReturn(VictimChooser& chooser, uint64_t between) {
  EXPECT_EQ(chooser.classify(PageIndex(1), WriteBit::kNotArmed), Verdict::kEvict);
  for (uint64_t i = 0; i < between; ++i) {
    chooser.classify(PageIndex(100 + i % 2000), WriteBit::kNotArmed);
  }
  chooser.onFault(PageIndex(1), Nanoseconds(0));
  return chooser.score(PageIndex(1));
}

TEST_F(VictimTest, ThePageThatReturnsSoonerGainsMore) {
  uint32_t previous = VictimChooser::kMaxScore + 1;
  for (uint64_t between : {0, 20, 55, 120}) {
    std::fill(bytes_.begin(), bytes_.end(), uint8_t{0});
    VictimChooser chooser(configOf(1024), memory());
    const uint32_t score = scoreAfterReturn(chooser, between);
    EXPECT_LT(score, previous) << between;
    EXPECT_GT(score, 0u) << between;
    previous = score;
  }
}

TEST_F(VictimTest, APageThatReturnsLateOrForTheFirstTimeGainsNothing) {
  for (uint64_t between : {150, 1024, 3 * 1024}) {
    std::fill(bytes_.begin(), bytes_.end(), uint8_t{0});
    VictimChooser chooser(configOf(1024), memory());
    EXPECT_EQ(scoreAfterReturn(chooser, between), 0u) << between;
  }
  VictimChooser chooser(configOf(1024), memory());
  chooser.onFault(PageIndex(7), Nanoseconds(0));
  EXPECT_EQ(chooser.score(PageIndex(7)), 0u);
}

TEST_F(VictimTest, ADiscardForgetsThatAPageEverLeft) {
  VictimChooser chooser(configOf(1024), memory());
  EXPECT_EQ(chooser.classify(PageIndex(1), WriteBit::kNotArmed), Verdict::kEvict);
  chooser.onDiscard(PageIndex(1));
  chooser.onFault(PageIndex(1), Nanoseconds(0));
  EXPECT_EQ(chooser.score(PageIndex(1)), 0u);
}

TEST_F(VictimTest, KnowsAboutHowManyWentSinceAPageDid) {
  for (const uint64_t before : {0, 1, 700}) {
    for (const uint64_t between : {0, 5, 64, 100, 700, 3000}) {
      std::fill(bytes_.begin(), bytes_.end(), uint8_t{0});
      VictimChooser chooser(configOf(1024), memory());
      EXPECT_FALSE(chooser.evictedSince(PageIndex(1))) << "it never went";
      const auto evict = [&](uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) {
          chooser.classify(PageIndex(100 + i % 2000), WriteBit::kNotArmed);
        }
      };
      evict(before);
      ASSERT_EQ(chooser.classify(PageIndex(1), WriteBit::kNotArmed), Verdict::kEvict);
      evict(between);
      const auto since = chooser.evictedSince(PageIndex(1));
      ASSERT_TRUE(since);
      EXPECT_NEAR(static_cast<double>(since->value()), static_cast<double>(between), 1024.0 / 64);
    }
  }
}

TEST_F(VictimTest, ARescueIsAReturnAtOnce) {
  VictimChooser chooser(configOf(1024), memory());
  EXPECT_EQ(chooser.classify(PageIndex(1), WriteBit::kNotArmed), Verdict::kEvict);
  chooser.onRescue(PageIndex(1), Nanoseconds(0));
  EXPECT_EQ(chooser.score(PageIndex(1)), VictimChooser::kMaxScore);
}

TEST_F(VictimTest, ASampleSavesAPageAndADiscardForgetsIt) {
  VictimChooser chooser(configOf(256), memory());
  chooser.onSample(PageIndex(5), 1000);
  EXPECT_EQ(chooser.classify(PageIndex(5), WriteBit::kNotArmed), Verdict::kKeep);
  chooser.onDiscard(PageIndex(5));
  EXPECT_EQ(chooser.classify(PageIndex(5), WriteBit::kNotArmed), Verdict::kEvict);
}

TEST_F(VictimTest, BehindAStreamOnlyWhatItBroughtGoes) {
  VictimChooser chooser(configOf(256), memory());
  chooser.onSample(PageIndex(1200), 3);
  for (uint64_t page = 1000; page < 3000;) {
    const PageRun run = chooser.onFault(PageIndex(page), Nanoseconds(1000));
    for (uint64_t i = 1; i < run.count.value(); ++i) {
      if (page + i != 1200) chooser.onPrefetched(PageIndex(page + i));  // 1200 was local already
    }
    page += run.count.value();
  }
  uint64_t gone = 0;
  for (;;) {
    const PageRun run = chooser.streams().takeBehind(PageCount(64));
    if (run.count.value() == 0) break;
    for (uint64_t i = 0; i < run.count.value(); ++i) {
      const PageIndex page = run.first + i;
      const Verdict verdict = chooser.classifyBehind(page);
      EXPECT_TRUE(page != PageIndex(1200) || verdict == Verdict::kKeep);
      gone += verdict == Verdict::kEvict;
    }
  }
  EXPECT_GT(gone, 1000u);
  EXPECT_EQ(chooser.score(PageIndex(1200)), 3u);
}

TEST_F(VictimTest, RunsAreCutAtTheEndOfTheSpace) {
  VictimChooser chooser(configOf(256), memory());
  for (uint64_t page = 4000; page < 4096;) {
    const PageRun run = chooser.onFault(PageIndex(page), Nanoseconds(1));
    page += run.count.value();
    ASSERT_LE(page, 4096u);
  }
}

// ---- inside the engine model ----

// `count` stores, 90 % of them to pages [first, first + hot).
void hotWrites(EngineModel& engine, std::mt19937_64& random, uint32_t first, uint32_t hot,
               uint32_t pages, int count) {
  for (int i = 0; i < count; ++i) {
    const auto page =
        static_cast<uint32_t>(random() % 10 ? first + random() % hot : random() % pages);
    engine.counts.compute_ns += 1000;
    engine.access(page, kWrite, 0);
  }
}

double localShare(const EngineModel& engine, uint32_t first, uint32_t count) {
  uint32_t local = 0;
  for (uint32_t page = first; page < first + count; ++page) local += engine.local(page);
  return static_cast<double>(local) / count;
}

TEST(VictimInEngine, KeepsAConstantHotSetAndTheProbeBudget) {
  constexpr int kSeeds = 8;  // a single look varies by several hundredths
  double share = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    EngineModel engine(20'000, configOf(4000), 256);
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    hotWrites(engine, random, 7000, 2000, 20'000, 400'000);
    const Counts before = engine.counts;
    hotWrites(engine, random, 7000, 2000, 20'000, 400'000);
    const Counts steady = engine.counts - before;
    share += localShare(engine, 7000, 2000) / kSeeds;
    // An oracle that keeps the hot set and as many others as fit faults on 90 % of the 10 %.
    EXPECT_LT(static_cast<double>(steady.faults), 1.15 * 400'000 * 0.1 * 16.0 / 18);
    const double elapsed = engine.counts.compute_ns + engine.counts.overheadNs();
    EXPECT_LT(static_cast<double>(engine.stats().probe_spent.value()), 0.0105 * elapsed);
  }
  EXPECT_GT(share, 0.97);
}

TEST(VictimInEngine, KeepsAHotSetThatIsOnlyRead) {
  EngineModel engine(20'000, configOf(4000), 256);
  std::mt19937_64 random(8);
  for (int i = 0; i < 800'000; ++i) {
    const auto page =
        static_cast<uint32_t>(random() % 10 ? 7000 + random() % 2000 : random() % 20'000);
    engine.counts.compute_ns += 1000;
    engine.access(page, 0, 0);
  }
  EXPECT_GT(localShare(engine, 7000, 2000), 0.9);
}

TEST(VictimInEngine, RegainsAHotSetThatMoved) {
  EngineModel engine(20'000, configOf(4000), 256);
  std::mt19937_64 random(2);
  hotWrites(engine, random, 7000, 2000, 20'000, 400'000);
  hotWrites(engine, random, 15'000, 2000, 20'000, 60'000);
  EXPECT_GT(localShare(engine, 15'000, 2000), 0.9);
  hotWrites(engine, random, 15'000, 2000, 20'000, 400'000);
  EXPECT_GT(localShare(engine, 15'000, 2000), 0.97);
  EXPECT_LT(localShare(engine, 7000, 2000), 0.3);
}

TEST(VictimInEngine, AScanDoesNotFlushTheHotSet) {
  EngineModel engine(40'000, configOf(4000), 256);
  std::mt19937_64 random(3);
  hotWrites(engine, random, 0, 2000, 20'000, 300'000);
  for (uint32_t page = 0; page < 40'000; ++page) {  // passes over the hot set as well
    engine.counts.compute_ns += 1000;
    engine.access(page, 0, 0);
    for (int i = 0; i < 4; ++i) {
      engine.access(static_cast<uint32_t>(random() % 2000), kWrite, 0);
    }
  }
  EXPECT_GT(localShare(engine, 0, 2000), 0.97);
}

TEST(VictimInEngine, AScanSparesMostOfAHotSetThatRests) {
  EngineModel engine(40'000, configOf(4000), 256);
  std::mt19937_64 random(3);
  hotWrites(engine, random, 0, 2000, 20'000, 300'000);
  for (uint32_t page = 0; page < 40'000; ++page) engine.access(page, 0, 0);
  // Ten times the memory has gone by, and nothing in it was used twice.
  EXPECT_GT(localShare(engine, 0, 2000), 0.8);
}

TEST(VictimInEngine, AWorkingSetThatFitsIsNeverEvicted) {
  EngineModel engine(20'000, configOf(4000), 256);
  std::mt19937_64 random(4);
  for (int i = 0; i < 200'000; ++i)
    engine.access(static_cast<uint32_t>(random() % 3500), kWrite, 0);
  EXPECT_EQ(engine.counts.evictions, 0u);
  EXPECT_EQ(engine.counts.faults, 0u);
}

TEST(VictimInEngine, NoPingPongOnAConstantTrace) {
  EngineModel engine(20'000, configOf(4000), 256);
  std::mt19937_64 random(5);
  hotWrites(engine, random, 7000, 2000, 20'000, 300'000);
  const Counts before = engine.counts;
  // From now on hot pages only: nothing else competes, so nothing may move any more.
  for (int i = 0; i < 300'000; ++i) {
    engine.access(static_cast<uint32_t>(7000 + random() % 2000), kWrite, 0);
  }
  const Counts after = engine.counts - before;
  EXPECT_LT(after.faults + after.rescues, 200u);
}

TEST(VictimInEngine, EqualInputGivesEqualOutput) {
  uint64_t faults[2], evictions[2];
  for (int run = 0; run < 2; ++run) {
    EngineModel engine(20'000, configOf(3000), 128);
    std::mt19937_64 random(6);
    hotWrites(engine, random, 0, 2000, 20'000, 150'000);
    faults[run] = engine.counts.faults;
    evictions[run] = engine.counts.evictions;
  }
  EXPECT_EQ(faults[0], faults[1]);
  EXPECT_EQ(evictions[0], evictions[1]);
}

TEST(VictimInEngine, SamplingBringsSomethingAndItsAbsenceIsSurvived) {
  uint64_t faults[2];
  for (int sampled = 0; sampled < 2; ++sampled) {
    VictimConfig config = configOf(4000);
    if (sampled == 0) config.sampling_cpu = 0;
    EngineModel engine(20'000, config, 256);
    std::mt19937_64 random(7);
    hotWrites(engine, random, 7000, 2000, 20'000, 400'000);
    faults[sampled] = engine.counts.faults;
  }
  EXPECT_LT(faults[1], faults[0]);
}

}  // namespace
}  // namespace tidepool
