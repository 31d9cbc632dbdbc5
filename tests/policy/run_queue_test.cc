// SPDX-License-Identifier: Apache-2.0
// The queue of advice: pieces cover exactly what was pushed, in order, none across granules.
#include "runtime/policy/run_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace tidepool {
namespace {

PageRun run(uint64_t first, uint64_t count) { return {PageIndex(first), PageCount(count)}; }

TEST(RunQueue, JoinsRunsThatFollow) {
  RunQueue queue;
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_TRUE(queue.push(run(i, 1)));
  EXPECT_EQ(queue.front(PageCount(128)).count.value(), 128u);
}

TEST(RunQueue, TurnsAwayWhatDoesNotFit) {
  RunQueue queue;
  for (uint64_t i = 0; i < RunQueue::kMost; ++i) EXPECT_TRUE(queue.push(run(10 * i, 2)));
  EXPECT_FALSE(queue.push(run(5000, 1)));
  EXPECT_TRUE(queue.push(run(10 * (RunQueue::kMost - 1) + 2, 1))) << "joins the last";
  queue.drop(queue.front(PageCount(2)));
  EXPECT_TRUE(queue.push(run(5000, 1)));
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.front(PageCount(1)).count.value(), 0u);
}

TEST(RunQueue, PiecesCoverWhatWasPushed) {
  std::mt19937_64 random(20261121);
  RunQueue queue;
  std::deque<uint64_t> model;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 4 == 0) {
      const PageRun pushed = run(random() % 100'000, random() % 2000);
      if (!queue.push(pushed)) continue;
      for (uint64_t i = 0; i < pushed.count.value(); ++i) {
        model.push_back(pushed.first.value() + i);
      }
      continue;
    }
    const uint64_t limit = 1 + random() % 600;
    const PageRun piece = queue.front(PageCount(limit));
    ASSERT_EQ(piece.count.value() == 0, model.empty());
    if (model.empty()) continue;
    ASSERT_LE(piece.count.value(), limit);
    ASSERT_EQ(granuleOf(piece.first), granuleOf(piece.first + (piece.count.value() - 1)));
    for (uint64_t i = 0; i < piece.count.value(); ++i) {
      ASSERT_EQ(model.front(), piece.first.value() + i);
      model.pop_front();
    }
    queue.drop(piece);
  }
}

}  // namespace
}  // namespace tidepool
