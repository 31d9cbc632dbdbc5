// SPDX-License-Identifier: Apache-2.0
// LiveCurve: a cheap sample before the curve's own. Both choose by hash, so distances between the
// uses of a row shrink in proportion (SHARDS, Waldspurger et al., FAST 2015).
#include "allocator/table/live_curve.h"

#include <algorithm>
#include <bit>

namespace tidepool {
namespace {

// Rows to choose from: several times as many as the curve keeps.
constexpr uint64_t kLeastRows = 4 * MissRatioCurve::kMostRows;
constexpr unsigned kMostShift = 6;
constexpr uint64_t kSeed = 0x7464706c;

unsigned shiftFor(RowNumber rows) {
  const uint64_t times = std::max<uint64_t>(rows / kLeastRows, 1);
  return std::min(kMostShift, static_cast<unsigned>(std::bit_width(times)) - 1);
}

/// Fibonacci hashing; the curve's hash is another one.
bool chosen(int64_t id, unsigned shift) {
  return static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (63 - shift) >> 1 == 0;
}

}  // namespace

LiveCurve::LiveCurve(RowNumber rows, Bytes whole) : shift_(shiftFor(rows)) {
  if (memoryFor(whole) > Bytes()) curve_ = std::make_unique<MissRatioCurve>(kSeed);
}

Bytes LiveCurve::memoryFor(Bytes whole) {
  const Bytes curve = Bytes(sizeof(LiveCurve)) + MissRatioCurve::metadataBytes();
  return whole > curve ? curve : Bytes();
}

void LiveCurve::observe(std::span<const int64_t> ids) {
  MutexLock lock(mutex_);
  lookups_ += static_cast<double>(ids.size());
  if (curve_ == nullptr) return;
  for (const int64_t id : ids) {
    if (!chosen(id, shift_)) continue;
    const RowIndex row(static_cast<uint64_t>(id));
    if (curve_->sampled(row)) curve_->onSampled(row);
  }
  uncounted_ += ids.size();
  curve_->onLookups(uncounted_ >> shift_);
  uncounted_ &= (uint64_t{1} << shift_) - 1;
}

void LiveCurve::age() {
  MutexLock lock(mutex_);
  if (curve_ != nullptr) curve_->age();
  lookups_ /= 2;
}

double LiveCurve::lookups() {
  MutexLock lock(mutex_);
  return lookups_;
}

std::vector<LiveCurve::Point> LiveCurve::points(uint64_t most) {
  MutexLock lock(mutex_);
  if (curve_ == nullptr) return {{most, 1}};
  const auto missed = curve_->missRatios();
  std::vector<Point> points;
  for (unsigned bucket = 0; bucket < MissRatioCurve::kBuckets; ++bucket) {
    const uint64_t slots = MissRatioCurve::slotsOf(bucket).value();
    const uint64_t whole = std::min(slots << shift_, most);
    if (points.empty() || whole > points.back().slots) points.push_back({whole, 0});
    points.back().hit_ratio = 1 - missed[bucket];
    if (whole == most) break;
  }
  return points;
}

}  // namespace tidepool
