// SPDX-License-Identifier: Apache-2.0
// A token bucket over what background migration moves. Bytes moved are told as a total that only
// grows, so movers need not know of the bucket. What nobody can put off (the budget's
// pressure) is not asked here, but counts all the same: background moves wait until it is paid for.
// Pure: no clock. Not thread-safe; one owner.
#pragma once

#include <algorithm>

#include "runtime/base/debug_check.h"
#include "runtime/base/units.h"

namespace tidepool {

class MoveRate {
 public:
  /// 0: no limit.
  explicit MoveRate(double bytes_per_second) : rate_(bytes_per_second), earned_(burst()) {}

  /// It is `now`, which never goes back, and `moved` bytes have been moved since the start. What
  /// may be saved up is a quarter of a second's worth.
  void earn(Nanoseconds now, Bytes moved) {
    TP_DCHECK(now >= last_);
    const double elapsed = last_.value() != 0 ? static_cast<double>((now - last_).value()) : 0;
    last_ = now;
    earned_ = std::min(earned_ + elapsed * 1e-9 * rate_, asDouble(moved) + burst());
  }

  /// Whether more may be moved. A move that is begun may overdraw; what follows then waits longer.
  bool open(Bytes moved) const { return rate_ <= 0 || asDouble(moved) < earned_; }

 private:
  double burst() const { return rate_ / 4; }
  static double asDouble(Bytes bytes) { return static_cast<double>(bytes.value()); }

  double rate_;
  double earned_;  // the total up to which may be moved
  Nanoseconds last_;
};

}  // namespace tidepool
