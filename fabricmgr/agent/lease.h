// SPDX-License-Identifier: Apache-2.0
// Until when this host may touch its regions. The manager counts from when it hears of the host;
// this side from before that, and stops earlier. Thread-safe.
#pragma once

#include <atomic>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace tidepool::agent {

class Lease {
 public:
  /// A moment of BootClock: a host that was suspended is to know that its lease is over. 0: none.
  void set(Nanoseconds until) { until_.store(until.value(), std::memory_order_relaxed); }
  Nanoseconds until() const { return Nanoseconds(until_.load(std::memory_order_relaxed)); }
  Nanoseconds left() const {
    const Nanoseconds now = BootClock().now();
    return until() > now ? until() - now : Nanoseconds();
  }
  bool runs() const { return left() != Nanoseconds(); }
  /// Before each piece of a region that is written. Errors: kStaleEpoch, it may be another's.
  Status check() const {
    if (runs()) return {};
    return fail(ErrorCode::kStaleEpoch, "the lease of this host is over");
  }

 private:
  std::atomic<uint64_t> until_{0};
};

}  // namespace tidepool::agent
