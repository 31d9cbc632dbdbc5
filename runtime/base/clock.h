// SPDX-License-Identifier: Apache-2.0
// The clock that code is given, so that tests can hand it a fake one. Thread-safe.
#pragma once

#include <ctime>

#include "runtime/base/units.h"

namespace tidepool {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Time since an arbitrary start; never goes back.
  virtual Nanoseconds now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  Nanoseconds now() const override {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return Nanoseconds(static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u +
                       static_cast<uint64_t>(time.tv_nsec));
  }
};

/// CPU time that the calling thread has used.
inline Nanoseconds threadCpuTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return Nanoseconds(static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u +
                     static_cast<uint64_t>(time.tv_nsec));
}

}  // namespace tidepool
