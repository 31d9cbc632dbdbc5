// SPDX-License-Identifier: Apache-2.0
// The clock that code is given, so that tests can hand it a fake one. Thread-safe.
#pragma once

#include <ctime>

#include "runtime/base/units.h"

namespace tidepool {

/// One of the kernel's clocks, which must be one that it has.
inline Nanoseconds readClock(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return Nanoseconds(static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u +
                     static_cast<uint64_t>(time.tv_nsec));
}

class Clock {
 public:
  virtual ~Clock() = default;
  /// Time since an arbitrary start; never goes back.
  virtual Nanoseconds now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  constexpr ~MonotonicClock() override {}  // written out: GCC 12 defines its own too late
  Nanoseconds now() const override { return readClock(CLOCK_MONOTONIC); }
};
inline constexpr MonotonicClock kMonotonicClock{};

/// Goes on while the machine is suspended: for promises between machines.
class BootClock final : public Clock {
 public:
  Nanoseconds now() const override { return readClock(CLOCK_BOOTTIME); }
};

/// Time of day, since the start of 1970 UTC: for records that people read and for what must outlast
/// a restart. Unlike other clocks it is set now and then, and may go back.
class WallClock final : public Clock {
 public:
  Nanoseconds now() const override { return readClock(CLOCK_REALTIME); }
};

/// CPU time that the calling thread has used.
inline Nanoseconds threadCpuTime() { return readClock(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace tidepool
