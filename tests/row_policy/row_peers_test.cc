// SPDX-License-Identifier: Apache-2.0
// The simulator's known policies against naive ones on small traces, and the heap they stand on.
#include "bench/row_peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "bench/indexed_heap.h"

namespace tidepool::bench {
namespace {

RowTrace smallTrace(uint64_t seed) {
  return makeRowTrace(seed % 2 ? "zipf-0.8" : "rotating", {60, 3000, 1000}, seed);
}

size_t nextUse(const RowTrace& trace, uint32_t row, size_t after, size_t end) {
  for (size_t i = after + 1; i < std::min(end, trace.lookups.size()); ++i) {
    if (trace.lookups[i] == row) return i;
  }
  return SIZE_MAX;
}

Hits naiveLru(const RowTrace& trace, size_t slots) {
  Hits hits;
  std::list<uint32_t> order;
  for (const uint32_t row : trace.lookups) {
    const auto at = std::find(order.begin(), order.end(), row);
    hits.push_back(at != order.end());
    if (at != order.end()) {
      order.erase(at);
    } else if (order.size() == slots) {
      order.pop_front();
    }
    order.push_back(row);
  }
  return hits;
}

Hits naiveLfu(const RowTrace& trace, size_t slots, bool in_cache) {
  Hits hits;
  std::map<uint32_t, std::pair<uint32_t, size_t>> used;  // count, last use
  std::set<uint32_t> in;
  for (size_t i = 0; i < trace.lookups.size(); ++i) {
    const uint32_t row = trace.lookups[i];
    hits.push_back(in.contains(row));
    ++used[row].first;
    if (hits.back() || in.size() < slots) {
      used[row].second = i;
      in.insert(row);
      continue;
    }
    const uint32_t least = *std::min_element(
        in.begin(), in.end(), [&](uint32_t a, uint32_t b) { return used[a] < used[b]; });
    if (!in_cache && used[row].first <= used[least].first) continue;
    if (in_cache) used[least].first = 0;
    in.erase(least);
    used[row].second = i;
    in.insert(row);
  }
  return hits;
}

Hits naiveBelady(const RowTrace& trace, size_t slots) {
  Hits hits;
  std::set<uint32_t> in;
  for (size_t i = 0; i < trace.lookups.size(); ++i) {
    const uint32_t row = trace.lookups[i];
    hits.push_back(in.contains(row));
    in.insert(row);
    if (in.size() <= slots) continue;
    uint32_t furthest = row;
    for (const uint32_t other : in) {
      if (nextUse(trace, other, i, SIZE_MAX) > nextUse(trace, furthest, i, SIZE_MAX)) {
        furthest = other;
      }
    }
    in.erase(furthest);
  }
  return hits;
}

double rate(const RowTrace& trace, const Hits& hits) { return hitRate(trace, hits); }

TEST(RowPeers, LruIsLru) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RowTrace trace = smallTrace(seed);
    for (const uint32_t slots : {1u, 7u, 20u, 60u}) {
      EXPECT_EQ(runRowPeer("lru", trace, slots), naiveLru(trace, slots));
    }
  }
}

TEST(RowPeers, LfuIsLfu) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RowTrace trace = smallTrace(seed);
    for (const uint32_t slots : {1u, 7u, 20u, 60u}) {
      EXPECT_EQ(runRowPeer("lfu", trace, slots), naiveLfu(trace, slots, false));
      EXPECT_EQ(runRowPeer("lfu-cache", trace, slots), naiveLfu(trace, slots, true));
    }
  }
}

// Rows that are never used again may be given up in any order: the hits are the same.
TEST(RowPeers, BeladyIsBelady) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RowTrace trace = smallTrace(seed);
    for (const uint32_t slots : {1u, 7u, 20u, 60u}) {
      EXPECT_EQ(runRowPeer("belady", trace, slots), naiveBelady(trace, slots));
    }
  }
}

TEST(RowPeers, NobodyBeatsBelady) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RowTrace trace = smallTrace(seed);
    const double most = rate(trace, runRowPeer("belady", trace, 9)) + 0.005;  // of the warm-up
    for (const std::string& name : rowPeerNames()) {
      EXPECT_LE(rate(trace, runRowPeer(name, trace, 9)), most) << name;
    }
    EXPECT_LE(rate(trace, runWindowedBelady(trace, 9, {10, 4})), most);
  }
}

TEST(RowPeers, AWindowOverTheWholeTraceIsBelady) {
  const RowTrace trace = smallTrace(2);
  const double belady = rate(trace, runRowPeer("belady", trace, 9));
  for (const Uses uses : {Uses::kExpected, Uses::kCounted}) {
    const double all = rate(trace, runWindowedBelady(trace, 9, {trace.lookups.size(), 1, uses}));
    EXPECT_NEAR(all, belady, 0.002);
    EXPECT_LT(rate(trace, runWindowedBelady(trace, 9, {1, 0, uses})), all - 0.02);
  }
}

// They differ in whether a row that has been used as often as the least used one comes in.
TEST(RowPeers, WithoutAWindowCountingIsLfu) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const RowTrace trace = smallTrace(seed);
    const Hits counting = runWindowedBelady(trace, 9, {1, 0, Uses::kCounted});
    EXPECT_NEAR(rate(trace, counting), rate(trace, runRowPeer("lfu", trace, 9)), 0.02);
  }
}

TEST(RowPeers, TheStaticOracleHasTheRowsUsedMost) {
  const RowTrace trace = smallTrace(1);
  std::vector<uint32_t> uses(trace.rows);
  for (size_t i = trace.measured; i < trace.lookups.size(); ++i) ++uses[trace.lookups[i]];
  std::sort(uses.rbegin(), uses.rend());
  uint32_t most = 0;
  for (int i = 0; i < 11; ++i) most += uses[i];
  EXPECT_DOUBLE_EQ(rate(trace, runRowPeer("static", trace, 11)), most / 2000.0);
}

// Step by step as in the paper: one use in the small queue is no ticket to the main one, two are.
TEST(RowPeers, S3FifoKeepsWhatWasUsedTwiceAndWelcomesGhosts) {
  RowTrace trace{.name = "by hand", .rows = 40, .measured = 0};
  trace.lookups = {0, 0, 0};  // used twice after it came
  for (uint32_t row = 1; row <= 10; ++row) trace.lookups.push_back(row);  // 1 leaves as a ghost
  const size_t asked = trace.lookups.size();
  trace.lookups.push_back(0);  // still there
  trace.lookups.push_back(1);  // a ghost: to the main queue, and row 2 leaves
  for (uint32_t row = 11; row <= 20; ++row) trace.lookups.push_back(row);
  trace.lookups.push_back(1);
  trace.lookups.push_back(5);
  const Hits hits = runRowPeer("s3fifo", trace, 10);
  EXPECT_EQ(hits[asked], 1);
  EXPECT_EQ(hits[asked + 1], 0);
  EXPECT_EQ(hits[hits.size() - 2], 1);
  EXPECT_EQ(hits[hits.size() - 1], 0);
}

TEST(RowPeers, UnknownNamesGiveNothing) {
  EXPECT_TRUE(runRowPeer("magic", smallTrace(1), 5).empty());
}

TEST(IndexedHeap, HasTheLeastOnTop) {
  std::mt19937_64 random(1);
  IndexedHeap<uint64_t> heap(200);
  std::map<uint32_t, uint64_t> model;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 3 && !model.empty()) {
      uint64_t least = UINT64_MAX;
      for (const auto& [item, key] : model) least = std::min(least, key);
      ASSERT_EQ(heap.leastKey(), least);
      ASSERT_EQ(model[heap.least()], least);
      model.erase(heap.least());
      heap.removeLeast();
    } else {
      for (int k = 0; k < 3; ++k) {
        const auto item = static_cast<uint32_t>(random() % 200);
        heap.set(item, model[item] = random() % 1000);
      }
    }
    ASSERT_EQ(heap.size(), model.size());
  }
}

}  // namespace
}  // namespace tidepool::bench
