// SPDX-License-Identifier: Apache-2.0
// LatencyHistogram: buckets cover every latency in order, and quantiles bound the true ones within
// a quarter of an octave.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/stats/stats_page.h"

namespace tidepool {
namespace {

constexpr uint64_t kTop = UINT64_C(1) << 41;

TEST(LatencyHistogram, EdgesNeverGoDown) {
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    EXPECT_LE(LatencyHistogram::edgeOf(i), LatencyHistogram::edgeOf(i + 1)) << i;
  }
  EXPECT_EQ(LatencyHistogram::edgeOf(0).value(), 0u);
  EXPECT_EQ(LatencyHistogram::edgeOf(LatencyHistogram::kBuckets).value(), kTop);
}

TEST(LatencyHistogram, EveryLatencyLiesInsideItsBucket) {
  const auto inside = [](uint64_t value) {
    const int bucket = LatencyHistogram::bucketOf(Nanoseconds(value));
    return bucket >= 0 && bucket < LatencyHistogram::kBuckets &&
           LatencyHistogram::edgeOf(bucket).value() <= value &&
           (value < LatencyHistogram::edgeOf(bucket + 1).value() || value >= kTop);
  };
  for (uint64_t value = 0; value < 100'000; ++value) ASSERT_TRUE(inside(value)) << value;
  for (int shift = 0; shift < 64; ++shift) {
    const uint64_t power = UINT64_C(1) << shift;
    for (const uint64_t value : {power - 1, power, power + 1}) ASSERT_TRUE(inside(value)) << value;
  }
  EXPECT_TRUE(rc::check([&](uint64_t value) { RC_ASSERT(inside(value)); }));
  EXPECT_EQ(LatencyHistogram::bucketOf(Nanoseconds(UINT64_MAX)), LatencyHistogram::kBuckets - 1);
}

TEST(LatencyHistogram, NoRecordsGiveZero) {
  const auto histogram = std::make_unique<LatencyHistogram>();
  EXPECT_EQ(histogram->quantile(0.5).value(), 0u);
}

TEST(LatencyHistogram, AQuantileBoundsTheTrueOne) {
  EXPECT_TRUE(rc::check("against a sorted list", [] {
    auto values = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<uint64_t>>(rc::gen::inRange<uint64_t>(1, kTop / 2)));
    const double fraction = *rc::gen::inRange(0, 101) / 100.0;
    const auto histogram = std::make_unique<LatencyHistogram>();
    for (const uint64_t value : values) histogram->record(Nanoseconds(value));
    std::sort(values.begin(), values.end());
    const auto rank = std::max<size_t>(1, static_cast<size_t>(std::ceil(fraction * values.size())));
    const uint64_t exact = values[rank - 1];
    const uint64_t bound = histogram->quantile(fraction).value();
    RC_ASSERT(bound > exact);
    RC_ASSERT(bound <= exact + exact / 4 + 1);
  }));
}

TEST(LatencyHistogram, FractionsOutsideTheRangeAreClamped) {
  const auto histogram = std::make_unique<LatencyHistogram>();
  histogram->record(Nanoseconds(1000));
  EXPECT_EQ(histogram->quantile(-1), histogram->quantile(0));
  EXPECT_EQ(histogram->quantile(7), histogram->quantile(1));
}

}  // namespace
}  // namespace tidepool
