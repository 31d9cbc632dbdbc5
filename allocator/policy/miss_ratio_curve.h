// SPDX-License-Identifier: Apache-2.0
// A live miss-ratio curve of one table: which share of lookups would miss with how many slots, were
// the least recently used row given up. From reuse distances of rows sampled by hash (SHARDS,
// Waldspurger et al., FAST 2015), at most kMostRows of them: fixed memory of about 230 KiB. Pure;
// sampled() may be called by any thread, everything else under a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "allocator/policy/row_sketch.h"
#include "allocator/policy/row_units.h"

namespace tidepool {

class MissRatioCurve {
 public:
  static constexpr uint32_t kMostRows = 4096;

  explicit MissRatioCurve(uint64_t seed);
  ~MissRatioCurve();

  /// Whether onSampled() is to be told of lookups of this row.
  bool sampled(RowIndex row) const {
    return rowHash(row.value(), seed_) >> 32 < threshold_.load(std::memory_order_relaxed);
  }
  /// A lookup of a row that is sampled (one that is not is left out).
  void onSampled(RowIndex row);
  /// So many lookups were made, sampled or not: once a batch. Evens out which of the hottest rows
  /// happen to be in the sample (the paper's SHARDS-adj).
  void onLookups(uint64_t count) { lookups_ += static_cast<double>(count); }
  /// What has been counted so far counts half from now on.
  void age();

  /// The share of lookups that would miss; 1 when nothing was sampled. Errs by some 0.02 with as
  /// many slots as a hundred sampled rows stand for, and by more with fewer.
  double missRatio(SlotCount slots) const;
  double sampledShare() const;
  static Bytes metadataBytes();

  // Distances are counted in buckets: four for each doubling.
  static constexpr unsigned kBuckets = 4 * 40;
  /// The number of slots with which lookups of bucket b and all before it hit.
  static SlotCount slotsOf(unsigned bucket);
  /// missRatio(slotsOf(b)) for every bucket b, in one go.
  std::array<double, kBuckets> missRatios() const;

 private:
  struct Sample;
  static unsigned bucketOf(double distance);
  void forgetGreatest();
  void scale(double factor);

  uint64_t seed_;
  std::atomic<uint64_t> threshold_{uint64_t{1} << 32};  // of the hash's upper half
  double lookups_ = 0;                                  // all, aged
  double counted_ = 0;                                  // sampled ones at today's share, aged
  std::array<double, kBuckets> hits_{};
  std::unique_ptr<Sample> sample_;
};

}  // namespace tidepool
