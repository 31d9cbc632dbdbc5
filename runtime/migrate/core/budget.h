// SPDX-License-Identifier: Apache-2.0
// The local DRAM budget, in pages: what managed pages and staging hold now, and how many they may
// hold. The limit follows what the process holds elsewhere (see Migrator). Lock-free, thread-safe.
#pragma once

#include <atomic>

#include "runtime/base/check.h"
#include "runtime/base/units.h"

namespace tidepool {

class Budget {
 public:
  /// Whether the limit may be exceeded.
  enum class Beyond : uint8_t { kNever, kOnce };
  bool tryCharge(PageCount pages, Beyond beyond) {
    if (beyond == Beyond::kNever) return tryCharge(pages);
    charge(pages);
    return true;
  }
  /// Takes `pages` if they fit under the limit; all or nothing.
  bool tryCharge(PageCount pages) {
    uint64_t held = held_.load(std::memory_order_relaxed);
    do {
      if (held + pages.value() > limit_.load(std::memory_order_relaxed)) return false;
    } while (!held_.compare_exchange_weak(held, held + pages.value(), std::memory_order_relaxed));
    return true;
  }
  /// Takes `pages` whatever the limit: for pages that already exist, or must.
  void charge(PageCount pages) { held_.fetch_add(pages.value(), std::memory_order_relaxed); }
  void discharge(PageCount pages) {
    const uint64_t before = held_.fetch_sub(pages.value(), std::memory_order_relaxed);
    TP_CHECK_OP(before, >=, pages.value());
  }
  PageCount held() const { return PageCount(held_.load(std::memory_order_relaxed)); }
  PageCount limit() const { return PageCount(limit_.load(std::memory_order_relaxed)); }
  void setLimit(PageCount pages) { limit_.store(pages.value(), std::memory_order_relaxed); }
  /// Pages that may still be taken; 0 when over the limit.
  PageCount room() const {
    const uint64_t held = held_.load(std::memory_order_relaxed);
    const uint64_t limit = limit_.load(std::memory_order_relaxed);
    return PageCount(limit > held ? limit - held : 0);
  }

 private:
  // Relaxed throughout: the numbers guard no other memory, and page words order the contents.
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> limit_{~uint64_t{0} >> 1};
};

}  // namespace tidepool
