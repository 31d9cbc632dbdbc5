// SPDX-License-Identifier: Apache-2.0
// The generators: fit to the five points of production skew, rotation as stated, the same for a
// seed.
#include "bench/row_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace tidepool::bench {
namespace {

constexpr uint32_t kRows = 100'000;

struct Point {
  double rows, lookups;
};
constexpr Point kFive[] = {{0.002, 0.31}, {0.009, 0.42}, {0.05, 0.60}, {0.12, 0.72}, {0.37, 0.89}};

TEST(ProductionSkew, GoesThroughTheFivePoints) {
  for (const Point& point : kFive) {
    EXPECT_NEAR(ProductionSkew::lookupShare(point.rows), point.lookups, 1e-9);
  }
  EXPECT_NEAR(ProductionSkew::lookupShare(1), 1, 1e-9);
}

TEST(ProductionSkew, RanksHaveTheirShares) {
  const ProductionSkew skew(kRows);
  double sum = 0;
  for (uint32_t rank = 0; rank < kRows; ++rank) {
    ASSERT_GT(skew.frequency(rank), 0);
    sum += skew.frequency(rank);
  }
  EXPECT_NEAR(sum, 1, 1e-9);
  for (double u = 0.05; u < 1; u += 0.01) {
    EXPECT_NEAR(ProductionSkew::lookupShare((skew.rankAt(u) + 0.5) / kRows), u, 0.01);
  }
}

std::vector<uint32_t> countsOf(const RowTrace& trace) {
  std::vector<uint32_t> counts(trace.rows);
  for (const uint32_t row : trace.lookups) ++counts.at(row);
  return counts;
}

TEST(RowTrace, OfSkewHasTheFivePointsInItsCounts) {
  const RowTrace trace = makeRowTrace("skew", {kRows, 2'000'000, 0}, 1);
  ASSERT_EQ(trace.lookups.size(), 2'000'000u);
  const std::vector<uint32_t> counts = countsOf(trace);
  std::vector<uint32_t> order(kRows);  // by what the generator says, not by what came out
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return trace.frequency[a] > trace.frequency[b]; });
  for (const Point& point : kFive) {
    double lookups = 0;
    for (uint32_t i = 0; i < kRows * point.rows; ++i) lookups += counts[order[i]];
    EXPECT_NEAR(lookups / 2e6, point.lookups, 0.003) << point.rows;
  }
}

TEST(RowTrace, ScattersRanksOverTheRows) {
  const RowTrace trace = makeRowTrace("skew", {kRows, 500'000, 0}, 1);
  uint64_t lower_half = 0;
  for (const uint32_t row : trace.lookups) lower_half += row < kRows / 2;
  EXPECT_NEAR(static_cast<double>(lower_half) / 500'000, 0.5, 0.1);
}

TEST(RowTrace, RotatesAsStated) {
  const RowTrace trace = makeRowTrace("rotating", {kRows, 100'000, 0}, 1);
  const auto period = static_cast<size_t>(kRows * Rotation::kPeriod);
  const auto each = static_cast<size_t>(kRows * Rotation::kHottest * Rotation::kShare);
  ASSERT_EQ(trace.exchanges.size(), (trace.lookups.size() - 1) / period * each);
  for (size_t i = 0; i < trace.exchanges.size(); ++i) {
    ASSERT_EQ(trace.exchanges[i].at, (i / each + 1) * period);
  }
  // Of each pair the first had a rank among the hottest.
  std::vector<double> now = trace.frequency;
  const double least =
      ProductionSkew(kRows).frequency(static_cast<uint32_t>(kRows * Rotation::kHottest) - 1);
  for (const RowTrace::Exchange& rows : trace.exchanges) {
    ASSERT_GE(now[rows.a], least);
    std::swap(now[rows.a], now[rows.b]);
  }
}

TEST(RowTrace, IsTheSameForASeed) {
  for (const std::string& name : rowTraceNames()) {
    const RowTraceSize size = {2000, 20'000, 5000};
    const RowTrace trace = makeRowTrace(name, size, 3);
    EXPECT_EQ(trace.lookups.size(), size.lookups) << name;
    EXPECT_EQ(trace.lookups, makeRowTrace(name, size, 3).lookups) << name;
    EXPECT_NE(trace.lookups, makeRowTrace(name, size, 4).lookups) << name;
    EXPECT_LT(*std::max_element(trace.lookups.begin(), trace.lookups.end()), 2000u) << name;
  }
  EXPECT_TRUE(makeRowTrace("nonsense", {10, 10, 0}, 1).lookups.empty());
}

TEST(RowTrace, ZipfFollowsItsExponent) {
  std::vector<uint32_t> counts = countsOf(makeRowTrace("zipf-1.05", {1000, 400'000, 0}, 1));
  std::sort(counts.rbegin(), counts.rend());
  EXPECT_NEAR(static_cast<double>(counts[0]) / counts[9], std::pow(10, 1.05), 0.6);
}

TEST(RowTrace, ScanGoesOverAllRows) {
  const RowTrace trace = makeRowTrace("scan", {1000, 8000, 0}, 1);
  for (size_t i = 3; i < trace.lookups.size(); i += 4) {
    ASSERT_EQ(trace.lookups[i], i / 4 % 1000);
  }
}

TEST(RowTrace, ChangesOnceInTheMiddleOfWhatIsMeasured) {
  const RowTrace trace = makeRowTrace("change", {1000, 300'000, 100'000}, 1);
  const RowTrace skew = makeRowTrace("skew", {1000, 300'000, 100'000}, 1);
  const auto middle = static_cast<ptrdiff_t>(200'000);
  EXPECT_TRUE(
      std::equal(trace.lookups.begin(), trace.lookups.begin() + middle, skew.lookups.begin()));
  EXPECT_FALSE(std::equal(trace.lookups.begin() + middle, trace.lookups.end(),
                          skew.lookups.begin() + middle));
}

}  // namespace
}  // namespace tidepool::bench
