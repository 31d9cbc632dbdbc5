// SPDX-License-Identifier: Apache-2.0
// FrameTable of one process against a plain model: never a frame twice, never one outside, exact
// counts, full runs where they exist. Several processes: frame_sharing_test.cc.
#include "runtime/tier/frame_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

std::unique_ptr<FrameTable> make(uint64_t pages) {
  auto table = FrameTable::create(PageCount(pages));
  EXPECT_TRUE(table);
  return std::move(*table);
}

TEST(FrameTable, RefusesNothingAtAll) {
  EXPECT_FALSE(FrameTable::create(PageCount(0)));
  EXPECT_FALSE(make(10)->allocate(PageCount(0)));
}

TEST(FrameTable, GivesFullRunsFromFreshMemoryInOrder) {
  auto frames = make(10'000);
  uint64_t expected = 0;
  for (uint64_t wanted : {1u, 16u, 63u, 64u, 65u, 512u, 1000u}) {
    const auto run = frames->allocate(PageCount(wanted));
    ASSERT_TRUE(run);
    EXPECT_EQ(run->first.value(), expected);
    EXPECT_EQ(run->count.value(), wanted);
    expected += wanted;
  }
}

TEST(FrameTable, TellsWhichFramesAreHeld) {
  auto frames = make(200);
  EXPECT_EQ(frames->handedOutEnd(), FrameIndex(0));
  ASSERT_TRUE(frames->allocate(PageCount(130)));
  frames->release({FrameIndex(65), PageCount(2)});
  EXPECT_EQ(frames->handedOutEnd(), FrameIndex(130));
  std::array<uint64_t, 4> held;
  frames->copyHeld(FrameIndex(64), held);
  EXPECT_EQ(held, (std::array<uint64_t, 4>{~uint64_t{6}, 3, 0, 0}));
}

TEST(FrameTable, PrefersAFullRunToTheFirstHole) {
  auto frames = make(4096);
  ASSERT_TRUE(frames->allocate(PageCount(4096)));
  frames->release({FrameIndex(10), PageCount(3)});
  frames->release({FrameIndex(2000), PageCount(16)});
  const auto run = frames->allocate(PageCount(16));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first.value(), 2000u);
  EXPECT_EQ(run->count.value(), 16u);
  const auto rest = frames->allocate(PageCount(16));
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->first.value(), 10u);
  EXPECT_EQ(rest->count.value(), 3u);
  EXPECT_FALSE(frames->allocate(PageCount(1)));
}

TEST(FrameTable, UsesFramesAgainBeforeItTakesFreshOnes) {
  // A working set of 1000 pages that leave in batches of 128 and come back one by one.
  constexpr uint64_t kSet = 1000, kBatch = 128;
  auto frames = make(100'000);
  std::mt19937_64 random(7);
  std::vector<FrameIndex> out;
  uint64_t highest = 0;
  for (int round = 0; round < 500; ++round) {
    for (uint64_t left = kBatch; left > 0;) {
      const auto run = frames->allocate(PageCount(left));
      ASSERT_TRUE(run);
      left -= run->count.value();
      for (uint64_t i = 0; i < run->count.value(); ++i) out.push_back(run->first + i);
      highest = std::max(highest, run->first.value() + run->count.value());
    }
    while (out.size() > kSet) {
      std::swap(out[random() % out.size()], out.back());
      frames->release({out.back(), PageCount(1)});
      out.pop_back();
    }
  }
  EXPECT_LE(highest, 6 * kSet) << "of 64,000 that were handed out in all";
}

TEST(FrameTable, TakesAFreshRunBeforeManySmallPieces) {
  auto frames = make(10'000);
  ASSERT_TRUE(frames->allocate(PageCount(1000)));
  for (uint64_t i = 0; i < 200; ++i) frames->release({FrameIndex(5 * i), PageCount(1)});
  const auto run = frames->allocate(PageCount(16));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first.value(), 1000u);
  EXPECT_EQ(run->count.value(), 16u);
  EXPECT_LT(frames->allocate(PageCount(1))->first.value(), 1000u) << "one is no piece";
}

TEST(FrameTable, AWholeRunIsFoundBehindAnyNumberOfHoles) {
  // More holes than allocate() looks at before it takes what it has seen.
  constexpr uint64_t kHoles = 5000;
  auto frames = make(2 * kHoles + 40);
  ASSERT_TRUE(frames->allocateWhole(PageCount(2 * kHoles + 40)));
  for (uint64_t i = 0; i < kHoles; ++i) frames->release({FrameIndex(2 * i), PageCount(1)});
  frames->release({FrameIndex(2 * kHoles + 3), PageCount(30)});
  EXPECT_EQ(frames->allocateWhole(PageCount(31)).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(frames->used().value(), kHoles + 10);
  const auto run = frames->allocateWhole(PageCount(30));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first.value(), 2 * kHoles + 3);
  EXPECT_EQ(run->count.value(), 30u);
  EXPECT_FALSE(frames->allocateWhole(PageCount(2)));
  EXPECT_TRUE(frames->allocateWhole(PageCount(1)));
  EXPECT_EQ(frames->allocateWhole(PageCount(0)).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(frames->allocateWhole(PageCount(~uint64_t{0})).error().code(), ErrorCode::kNoSpace);
}

TEST(FrameTable, AWholeRunMayEndWithTheLastFrame) {
  auto frames = make(1000);
  ASSERT_TRUE(frames->allocateWhole(PageCount(900)));
  frames->release({FrameIndex(0), PageCount(50)});
  const auto run = frames->allocateWhole(PageCount(100));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first.value(), 900u);
}

TEST(FrameTable, FindsTheOneFreeFrameOfMany) {
  // Crosses all three levels of the bitmap: 64^3 frames and a bit.
  const uint64_t pages = 64 * 64 * 64 + 77;
  auto frames = make(pages);
  ASSERT_TRUE(frames->allocate(PageCount(pages)));
  for (uint64_t hole : {uint64_t{0}, uint64_t{63}, uint64_t{64}, uint64_t{4095}, uint64_t{4096},
                        uint64_t{262'143}, uint64_t{262'144}, pages - 1}) {
    frames->release({FrameIndex(hole), PageCount(1)});
    const auto run = frames->allocate(PageCount(8));
    ASSERT_TRUE(run) << hole;
    EXPECT_EQ(run->first.value(), hole);
    EXPECT_EQ(run->count.value(), 1u);
    EXPECT_FALSE(frames->allocate(PageCount(1)));
  }
}

TEST(FrameTable, UnusedCapacityCostsNoMemory) {
  // 16 TiB of frames: the bitmap would be 512 MiB if it were all touched.
  auto frames = make(uint64_t{16} * kTiB / kPageSize);
  EXPECT_TRUE(frames->allocate(PageCount(512)));
}

/// Random allocations and releases, whole and partial, next to a vector of booleans.
class AgainstModel : public testing::TestWithParam<uint64_t> {};

TEST_P(AgainstModel, NeverTwiceNeverOutsideExactCounts) {
  const uint64_t pages = GetParam();
  auto frames = make(pages);
  std::vector<bool> taken(pages);
  std::vector<FrameRun> held;
  uint64_t used = 0;
  std::mt19937_64 random(pages);
  for (int round = 0; round < 4000; ++round) {
    if (random() % 100 < 55) {
      const uint64_t wanted = 1 + random() % (random() % 8 == 0 ? 300 : 20);
      const auto run = frames->allocate(PageCount(wanted));
      ASSERT_EQ(run.has_value(), used < pages);
      if (!run) continue;
      ASSERT_GE(run->count.value(), 1u);
      ASSERT_LE(run->count.value(), wanted);
      ASSERT_LE(run->first.value() + run->count.value(), pages);
      for (uint64_t i = 0; i < run->count.value(); ++i) {
        ASSERT_FALSE(taken[run->first.value() + i]);
        taken[run->first.value() + i] = true;
      }
      used += run->count.value();
      held.push_back(*run);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      FrameRun run = held.back();
      held.pop_back();
      if (run.count.value() > 1 && random() % 3 == 0) {  // the front half only
        const uint64_t half = run.count.value() / 2;
        held.push_back({run.first + half, run.count - PageCount(half)});
        run.count = PageCount(half);
      }
      frames->release(run);
      for (uint64_t i = 0; i < run.count.value(); ++i) taken[run.first.value() + i] = false;
      used -= run.count.value();
    }
    ASSERT_EQ(frames->used().value(), used);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AgainstModel,
                         testing::Values(1, 2, 63, 64, 65, 127, 1000, 4096, 4097, 40'000));

TEST(FrameTable, ThreadsNeverShareAFrame) {
  constexpr uint64_t kPages = 5000;
  auto frames = make(kPages);
  std::vector<std::atomic<int>> owners(kPages);
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<uint64_t>(thread));
      for (int round = 0; round < 3000; ++round) {
        const auto run = frames->allocate(PageCount(1 + random() % 64));
        if (!run) continue;
        for (uint64_t i = 0; i < run->count.value(); ++i) {
          clashes += owners[run->first.value() + i].fetch_add(1) != 0;
        }
        for (uint64_t i = 0; i < run->count.value(); ++i) {
          owners[run->first.value() + i].fetch_sub(1);
        }
        frames->release(*run);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes.load(), 0);
  EXPECT_EQ(frames->used().value(), 0u);
}

TEST(FrameTableDeathTest, GivingBackTwiceIsABrokenInvariant) {
  auto frames = make(100);
  const auto run = frames->allocate(PageCount(4));
  ASSERT_TRUE(run);
  frames->release(*run);
  EXPECT_DEATH(frames->release(*run), "broken invariant");
}

}  // namespace
}  // namespace tidepool
