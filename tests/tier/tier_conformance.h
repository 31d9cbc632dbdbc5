// SPDX-License-Identifier: Apache-2.0
// What every Tier must do, as a suite of parameterised tests. far_kinds_test.cc runs it for the
// kinds of far memory that any machine has; another tier joins by
//   INSTANTIATE_TEST_SUITE_P(Numa, TierConformance, testing::Values(TierCase{"numa", makeTier}));
// in its own test program, where makeTier returns a fresh, empty tier of `pages` pages or a little
// more. Sizes are pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/units.h"
#include "runtime/tier/tier.h"

namespace tidepool {

struct TierCase {
  std::string name;
  std::function<std::unique_ptr<Tier>(PageCount pages)> make;
};

inline std::ostream& operator<<(std::ostream& out, const TierCase& tier_case) {
  return out << tier_case.name;
}

class TierConformance : public testing::TestWithParam<TierCase> {
 protected:
  // Four granules: enough for several runs of a direct tier, small enough to fill.
  static constexpr uint64_t kPages = 4 * kPagesPerGranule;

  void SetUp() override {
    tier_ = GetParam().make(PageCount(kPages));
    ASSERT_NE(tier_, nullptr);
  }

  /// The unit allocations come in: a granule for a direct tier, else a page.
  uint64_t unit() const { return tier_->kind() == TierKind::kDirect ? kPagesPerGranule : 1; }

  /// Fills `pages` pages with bytes that depend on the seed, the page and the place in it.
  static std::vector<std::byte> pattern(uint64_t seed, uint64_t pages) {
    std::vector<std::byte> bytes(pages * kPageSize);
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      memcpy(bytes.data() + at, &word, sizeof word);
    }
    return bytes;
  }

  void writePattern(FrameRun run, uint64_t seed) {
    const auto bytes = pattern(seed, run.count.value());
    const Status status = tier_->write(run, bytes.data());
    ASSERT_TRUE(status) << status.error().text();
  }
  void expectPattern(FrameRun run, uint64_t seed) {
    std::vector<std::byte> bytes(run.count.value() * kPageSize);
    const Status status = tier_->read(run, bytes.data());
    ASSERT_TRUE(status) << status.error().text();
    EXPECT_TRUE(bytes == pattern(seed, run.count.value())) << "frame " << run.first.value();
  }

  std::unique_ptr<Tier> tier_;
};

TEST_P(TierConformance, SaysWhatItIs) {
  EXPECT_STRNE(tier_->name(), "");
  EXPECT_GE(tier_->capacity().value(), kPages * kPageSize);
  EXPECT_EQ(tier_->used().value(), 0u);
}

TEST_P(TierConformance, AllocationsAreInsideAndDisjoint) {
  std::vector<bool> taken(tier_->capacity().value() / kPageSize);
  uint64_t total = 0;
  for (;;) {
    const auto run = tier_->allocate(PageCount(unit() * 3));
    if (!run) {
      EXPECT_EQ(run.error().code(), ErrorCode::kNoSpace);
      break;
    }
    ASSERT_GE(run->count.value(), 1u);
    ASSERT_LE(run->count.value(), unit() * 3);
    EXPECT_EQ(run->count.value() % unit(), 0u);
    EXPECT_EQ(run->first.value() % unit(), 0u);
    ASSERT_LE(run->first.value() + run->count.value(), taken.size());
    for (uint64_t i = 0; i < run->count.value(); ++i) {
      ASSERT_FALSE(taken[run->first.value() + i]) << "frame given out twice";
      taken[run->first.value() + i] = true;
    }
    total += run->count.value();
    EXPECT_EQ(tier_->used().value(), total * kPageSize);
  }
  EXPECT_GE(total, kPages);
}

TEST_P(TierConformance, AFullTierHasRoomAgainAfterARelease) {
  std::vector<FrameRun> runs;
  while (auto run = tier_->allocate(PageCount(unit()))) runs.push_back(*run);
  ASSERT_FALSE(runs.empty());
  const uint64_t full = tier_->used().value();
  tier_->release(runs.front());
  EXPECT_EQ(tier_->used().value(), full - runs.front().count.value() * kPageSize);
  const auto again = tier_->allocate(PageCount(unit()));
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(again->first, runs.front().first);
  EXPECT_FALSE(tier_->allocate(PageCount(unit())));
  for (const FrameRun& run : runs) tier_->release(run);
  EXPECT_EQ(tier_->used().value(), 0u);
}

TEST_P(TierConformance, ReadsBackWhatWasWritten) {
  const auto run = tier_->allocate(PageCount(unit() * 2));
  ASSERT_TRUE(run);
  writePattern(*run, 1);
  expectPattern(*run, 1);
  writePattern(*run, 2);
  expectPattern(*run, 2);
}

TEST_P(TierConformance, PartsOfARunCanBeReadAndWritten) {
  const auto run = tier_->allocate(PageCount(std::max<uint64_t>(unit(), 8)));
  ASSERT_TRUE(run);
  ASSERT_GE(run->count.value(), 4u);
  for (uint64_t i = 0; i < run->count.value(); ++i) {
    writePattern({run->first + i, PageCount(1)}, 100 + i);
  }
  for (uint64_t i = 0; i < run->count.value(); ++i) {
    expectPattern({run->first + i, PageCount(1)}, 100 + i);
  }
}

TEST_P(TierConformance, FramesAreIndependent) {
  std::vector<FrameRun> runs;
  while (auto run = tier_->allocate(PageCount(unit()))) {
    writePattern(*run, 1000 + runs.size());
    runs.push_back(*run);
  }
  // Every other run is rewritten; its neighbours must not change.
  for (size_t i = 0; i < runs.size(); i += 2) writePattern(runs[i], 5000 + i);
  for (size_t i = 0; i < runs.size(); ++i) expectPattern(runs[i], (i % 2 == 0 ? 5000 : 1000) + i);
}

TEST_P(TierConformance, CountsItsTraffic) {
  const auto run = tier_->allocate(PageCount(unit()));
  ASSERT_TRUE(run);
  const uint64_t reads = tier_->traffic().reads_bytes.load();
  const uint64_t writes = tier_->traffic().writes_bytes.load();
  writePattern(*run, 1);
  expectPattern(*run, 1);
  EXPECT_EQ(tier_->traffic().reads_bytes.load() - reads, run->count.value() * kPageSize);
  EXPECT_EQ(tier_->traffic().writes_bytes.load() - writes, run->count.value() * kPageSize);
}

TEST_P(TierConformance, ThreadsDoNotDisturbOneAnother) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 40;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread, &wrong] {
      for (int round = 0; round < kRounds; ++round) {
        const auto run = tier_->allocate(PageCount(unit()));
        if (!run) continue;  // the others hold everything just now
        const auto bytes =
            pattern(static_cast<uint64_t>(thread * 1000 + round), run->count.value());
        std::vector<std::byte> back(bytes.size());
        if (!tier_->write(*run, bytes.data()) || !tier_->read(*run, back.data()) || back != bytes) {
          wrong.fetch_add(1);
        }
        tier_->release(*run);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(tier_->used().value(), 0u);
}

}  // namespace tidepool
