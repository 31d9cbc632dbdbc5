// SPDX-License-Identifier: Apache-2.0
// What every Tier must do, as a suite of parameterised tests. far_kinds_test.cc runs it for the
// kinds of far memory that any machine has; another tier joins by
//   INSTANTIATE_TEST_SUITE_P(Numa, TierConformance, testing::Values(TierCase{"numa", makeTier}));
// in its own test program, where makeTier returns a fresh, empty tier of `pages` pages or a little
// more. Sizes are pages.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
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

/// The frames of one thread's channel, and what should be in them. Runs one request at a time.
class ScatterModel {
 public:
  ScatterModel(FetchTier& tier, std::vector<FrameIndex> frames, uint64_t seed)
      : channel_(std::move(*tier.openChannel())),
        frames_(std::move(frames)),
        content_(frames_.size()),
        random_(seed) {}

  /// Writes and reads frames in any order, some of them twice. False: something came back wrong.
  bool run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      if (!step(round == 0 || random_() % 2 == 0)) return false;
    }
    return true;
  }

 private:
  bool step(bool writes) {
    const size_t count = 1 + random_() % FetchChannel::kMostScattered;
    std::vector<size_t> chosen(count);
    std::vector<FrameIndex> frames(count);
    std::vector<std::array<uint64_t, kPageSize / sizeof(uint64_t)>> pages(count);
    for (size_t i = 0; i < count; ++i) {
      do {  // what is in a frame at first is nobody's
        chosen[i] = random_() % frames_.size();
      } while (!writes && content_[chosen[i]] == 0);
      frames[i] = frames_[chosen[i]];
      pages[i].fill(writes ? random_() : 0);
    }
    auto* const memory = reinterpret_cast<std::byte*>(pages.data());
    const uint64_t tag = random_();
    const Status queued = writes ? channel_->submitWriteScattered(tag, frames, memory)
                                 : channel_->submitReadScattered(tag, frames, memory);
    std::fill(frames.begin(), frames.end(), FrameIndex(0));  // read already
    if (!queued || !endsWell(tag)) return false;
    for (size_t i = 0; i < count; ++i) {
      uint64_t& known = content_[chosen[i]];
      if (writes) known = pages[i][0];
      const uint64_t wanted = known;
      if (!writes &&
          !std::all_of(pages[i].begin(), pages[i].end(), [&](uint64_t w) { return w == wanted; })) {
        return false;
      }
    }
    return true;
  }
  bool endsWell(uint64_t tag) {
    FetchCompletion done;
    while (channel_->poll({&done, 1}) == 0) {
      pollfd waiting = {channel_->fd(), channel_->events(), 0};
      poll(&waiting, 1, 1000);
    }
    return done.tag == tag && done.ok() && channel_->inFlight() == 0;
  }

  std::unique_ptr<FetchChannel> channel_;
  std::vector<FrameIndex> frames_;
  std::vector<uint64_t> content_;  // 0: not written yet
  std::mt19937_64 random_;
};

/// What a fetch tier must do besides.
class FetchTierConformance : public TierConformance {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FetchTierConformance);

TEST_P(FetchTierConformance, ScatteredPagesGoAnywhereAndComeBack) {
  auto& tier = static_cast<FetchTier&>(*tier_);
  constexpr uint64_t kThreads = 4;
  std::vector<FrameIndex> frames[kThreads];
  for (uint64_t next = 0;;) {
    const auto run = tier.allocate(PageCount(16));
    if (!run) break;
    for (uint64_t i = 0; i < run->count.value(); ++i) {
      frames[next++ % kThreads].push_back(run->first + i);
    }
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ScatterModel model(tier, std::move(frames[thread]), thread + 1);
      if (!model.run(100)) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(FetchTierConformance, AScatteredRequestHasAtLeastOneFrameAndNotTooMany) {
  auto channel = static_cast<FetchTier&>(*tier_).openChannel();
  ASSERT_TRUE(channel);
  std::vector<FrameIndex> frames(FetchChannel::kMostScattered + 1);
  std::vector<std::byte> memory(frames.size() * kPageSize);
  for (const size_t count : {size_t{0}, frames.size()}) {
    const std::span<const FrameIndex> some(frames.data(), count);
    const Status read = (*channel)->submitReadScattered(1, some, memory.data());
    const Status written = (*channel)->submitWriteScattered(2, some, memory.data());
    ASSERT_FALSE(read || written) << count;
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ((*channel)->inFlight(), 0u);
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
