// SPDX-License-Identifier: Apache-2.0
// LatencyHistogram: the arithmetic of log-linear buckets. Nanoseconds; safe from any thread.
#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

int LatencyHistogram::bucketOf(Nanoseconds latency) {
  const uint64_t value = std::max<uint64_t>(latency.value(), 1);
  const int octave = std::bit_width(value) - 1;
  if (octave >= kBuckets / kBucketsPerOctave) return kBuckets - 1;
  // The two bits below the leading one choose the quarter; octaves 0 and 1 have fewer bits.
  const uint64_t quarter = ((value << 2) >> octave) & 3;
  return octave * kBucketsPerOctave + static_cast<int>(quarter);
}

Nanoseconds LatencyHistogram::edgeOf(int bucket) {
  TP_CHECK_OP(bucket, >=, 0);
  TP_CHECK_OP(bucket, <=, kBuckets);
  if (bucket == 0) return Nanoseconds(0);
  const int octave = bucket / kBucketsPerOctave;
  const uint64_t quarters = kBucketsPerOctave + static_cast<uint64_t>(bucket % kBucketsPerOctave);
  // Rounded up: in octaves 0 and 1 an edge can fall between two whole nanoseconds.
  return Nanoseconds(((quarters << octave) + 3) >> 2);
}

Nanoseconds LatencyHistogram::quantile(double fraction) const {
  uint64_t counts[kBuckets];
  uint64_t total = 0;
  // Relaxed: counters move while we read; one copy keeps the total and the walk consistent.
  for (int i = 0; i < kBuckets; ++i) {
    counts[i] = buckets[i].load(std::memory_order_relaxed);
    total += counts[i];
  }
  if (total == 0) return Nanoseconds(0);
  const double share = std::clamp(fraction, 0.0, 1.0);
  const double rank = std::max(1.0, std::ceil(share * static_cast<double>(total)));
  uint64_t seen = 0;
  for (int i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    if (static_cast<double>(seen) >= rank) return edgeOf(i + 1);
  }
  return edgeOf(kBuckets);
}

}  // namespace tidepool
