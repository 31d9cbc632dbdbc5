// SPDX-License-Identifier: Apache-2.0
// Local memory that parts of the process hold outside the managed space and have announced, in
// bytes, against a limit. Lock-free, thread-safe.
#pragma once

#include <atomic>

#include "runtime/base/check.h"
#include "runtime/base/units.h"

namespace tidepool {

class Ledger {
 public:
  /// Adds `size` if the sum stays within `limit`; all or nothing.
  bool tryCharge(Bytes size, Bytes limit) {
    uint64_t held = held_.load(std::memory_order_relaxed);
    do {
      if (size > limit || held > (limit - size).value()) return false;
    } while (!held_.compare_exchange_weak(held, held + size.value(), std::memory_order_relaxed));
    return true;
  }
  /// No more than was charged.
  void discharge(Bytes size) {
    const uint64_t before = held_.fetch_sub(size.value(), std::memory_order_relaxed);
    TP_CHECK_OP(before, >=, size.value());
  }
  Bytes held() const { return Bytes(held_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<uint64_t> held_{0};  // relaxed: a number that guards no other memory
};

}  // namespace tidepool
