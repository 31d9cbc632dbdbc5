// SPDX-License-Identifier: Apache-2.0
// The row policy in the simulator's model of a table, on small traces: it holds up on all of them,
// and gains from a known future. What it reaches at size is for bench/row_sim to say.
#include "bench/row_run.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tidepool::bench {
namespace {

constexpr uint32_t kRows = 20'000;
constexpr RowTraceSize kSize = {kRows, 240'000, 120'000};

double rateOf(const RowTrace& trace, RowRun run) {
  return hitRate(trace, runRowPolicy(trace, run).hits);
}

class OfTrace : public testing::TestWithParam<std::string> {};

TEST_P(OfTrace, DoesNotCollapse) {
  const RowTrace trace = makeRowTrace(GetParam(), kSize, 1);
  for (const uint32_t slots : {kRows / 50, kRows / 10}) {
    const double lru = hitRate(trace, runRowPeer("lru", trace, slots));
    EXPECT_GE(rateOf(trace, {.slots = slots}), lru - 0.01) << slots;
  }
}

TEST_P(OfTrace, GainsFromAKnownFuture) {
  const RowTrace trace = makeRowTrace(GetParam(), kSize, 1);
  const RowRun run = {.slots = kRows / 50, .batch = 400, .lookahead = 16};
  const double ahead = rateOf(trace, run);
  EXPECT_GT(ahead, rateOf(trace, {.slots = run.slots}));
  EXPECT_LE(ahead, hitRate(trace, runRowPeer("belady", trace, run.slots)) + 0.002);
}

TEST_P(OfTrace, HasEveryRowOfABatchOnAFetchTier) {
  const RowTrace trace = makeRowTrace(GetParam(), {kRows, 60'000, 30'000}, 1);
  const RowRunResult result =
      runRowPolicy(trace, {.slots = 1000, .batch = 500, .lookahead = 4, .tier = FarTier::kFetch});
  EXPECT_EQ(result.overflows, 0u);
  EXPECT_EQ(result.stats.misses, result.stats.inserted);
  const auto misses = static_cast<uint64_t>(std::count(result.hits.begin(), result.hits.end(), 0));
  EXPECT_EQ(result.stats.misses, misses);
  // A row that came in stays for its batch: no row is missed twice in one.
  for (size_t begin = 0; begin < trace.lookups.size(); begin += 500) {
    std::vector<uint32_t> missed;
    for (size_t i = begin; i < begin + 500; ++i) {
      if (!result.hits[i]) missed.push_back(trace.lookups[i]);
    }
    std::sort(missed.begin(), missed.end());
    ASSERT_EQ(std::adjacent_find(missed.begin(), missed.end()), missed.end());
  }
}

INSTANTIATE_TEST_SUITE_P(All, OfTrace, testing::ValuesIn(rowTraceNames()), [](const auto& of) {
  std::string name = of.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

TEST(RowRun, SaysWhenABatchDoesNotFit) {
  const RowTrace trace = makeRowTrace("uniform", {kRows, 20'000, 0}, 1);
  const RowRunResult result =
      runRowPolicy(trace, {.slots = 100, .batch = 1000, .tier = FarTier::kFetch});
  EXPECT_GT(result.overflows, 15'000u);
}

TEST(RowRun, SaysWhatItTakes) {
  const RowTrace trace = makeRowTrace("skew", {kRows, 20'000, 0}, 1);
  const RowRunResult plain = runRowPolicy(trace, {.slots = 2000});
  EXPECT_EQ(plain.future_metadata, Bytes(0));
  EXPECT_LE(plain.metadata.value(), 2000u * 10);
  const RowRunResult ahead = runRowPolicy(trace, {.slots = 2000, .batch = 100, .lookahead = 9});
  EXPECT_LE(ahead.future_metadata.value(), 6'000u + 256);
}

}  // namespace
}  // namespace tidepool::bench
