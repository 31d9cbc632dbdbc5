// SPDX-License-Identifier: Apache-2.0
// Time during which the manager ran. Leases go by it: while the manager was stopped, suspended or
// starved it could not hear hosts, so that time says nothing of them. Not thread-safe: the
// manager's mutex.
#pragma once

#include <algorithm>

#include "runtime/base/clock.h"

namespace tidepool::fabric {

class AwakeTime {
 public:
  /// Between two calls of now() at most `most` counts. The owner sees to it that there is
  /// one more often.
  AwakeTime(const Clock& clock, Nanoseconds most)
      : clock_(clock), most_(most), looked_(clock.now()) {}

  Nanoseconds now() {
    const Nanoseconds time = clock_.now();
    const Nanoseconds passed = time > looked_ ? time - looked_ : Nanoseconds();
    looked_ = std::max(time, looked_);
    const Nanoseconds counted = std::min(passed, most_);
    counted_ += counted;
    missed_ += passed - counted;
    return counted_;
  }
  /// What did not count, since the start.
  Nanoseconds missed() const { return missed_; }

 private:
  const Clock& clock_;
  const Nanoseconds most_;
  Nanoseconds looked_;
  Nanoseconds counted_;
  Nanoseconds missed_;
};

}  // namespace tidepool::fabric
