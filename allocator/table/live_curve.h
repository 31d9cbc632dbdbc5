// SPDX-License-Identifier: Apache-2.0
// The miss-ratio curve of a table from the look-ups that it really gets: what more or less local
// memory would do to it. Of large tables a part of the rows is looked at, chosen by hash, so that
// most look-ups cost a multiplication. Of tables that cost less than a curve nothing is looked at:
// they are worth having whole. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocator/policy/miss_ratio_curve.h"
#include "allocator/rows/row_numbers.h"
#include "runtime/base/mutex.h"

namespace tidepool {

class LiveCurve {
 public:
  /// Of a table that has so many rows, which would cost `whole` if all were in local memory.
  LiveCurve(RowNumber rows, Bytes whole);

  /// These ids were looked up.
  void observe(std::span<const int64_t> ids) TP_EXCLUDES(mutex_);
  /// What was observed so far counts half from now on.
  void age() TP_EXCLUDES(mutex_);
  /// Look-ups, aged.
  double lookups() TP_EXCLUDES(mutex_);

  /// With so many slots, that share of look-ups would hit.
  struct Point {
    uint64_t slots;
    double hit_ratio;
  };
  /// Slots rise, up to `most`.
  std::vector<Point> points(uint64_t most) TP_EXCLUDES(mutex_);

  /// What one costs, of such a table.
  static Bytes memoryFor(Bytes whole);

 private:
  const unsigned shift_;  // one row in 2^shift_ is looked at
  Mutex mutex_;
  std::unique_ptr<MissRatioCurve> curve_ TP_GUARDED_BY(mutex_);  // null: a small table
  double lookups_ TP_GUARDED_BY(mutex_) = 0;
  uint64_t uncounted_ TP_GUARDED_BY(mutex_) = 0;  // of curve_.onLookups(): below 2^shift_
};

}  // namespace tidepool
