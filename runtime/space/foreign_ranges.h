// SPDX-License-Identifier: Apache-2.0
// Parts of the managed space over which the program mapped something of its own. They stay foreign.
// A child of fork() must know: it arms all else with its own userfaultfd. Thread-safe; grows with
// the number of such ranges, which is nearly always 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

class ForeignRanges {
 public:
  /// Addresses in bytes; size > 0.
  void add(uintptr_t start, Bytes size) {
    MutexLock lock(mutex_);
    uintptr_t& end = ends_[start];
    end = end < start + size.value() ? start + size.value() : end;
    // Release pairs with the acquire in touches().
    any_.store(true, std::memory_order_release);
  }
  /// True if any of [start, start + size) is foreign. One load where nothing is.
  bool touches(uintptr_t start, Bytes size) const {
    if (!any_.load(std::memory_order_acquire)) return false;
    MutexLock lock(mutex_);
    for (const auto& [first, last] : ends_) {
      if (first >= start + size.value()) break;
      if (last > start) return true;
    }
    return false;
  }
  /// Calls `act(start, size)` for what of [start, end) is not foreign, upwards; stops and returns
  /// when it fails.
  template <typename Act>
  auto forEachOwn(uintptr_t start, uintptr_t end, Act act) const -> decltype(act(start, Bytes())) {
    MutexLock lock(mutex_);
    for (const auto& [first, last] : ends_) {
      if (last <= start) continue;
      if (first >= end) break;
      if (first > start) {
        if (auto done = act(start, Bytes(first - start)); !done) return done;
      }
      start = last;
    }
    if (start < end) return act(start, Bytes(end - start));
    return {};
  }
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  mutable Mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_ TP_GUARDED_BY(mutex_);  // by start; may overlap
  std::atomic<bool> any_{false};
};

}  // namespace tidepool
