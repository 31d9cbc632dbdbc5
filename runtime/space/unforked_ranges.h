// SPDX-License-Identifier: Apache-2.0
// Parts of the managed space that children of fork() are not to have (MADV_DONTFORK). They are
// forked like all the rest, and given up in the child before anything else runs there. Thread-safe;
// a program that asks for it does so for each piece of its heap, any other pays one load.
#pragma once

#include <atomic>
#include <utility>

#include "runtime/base/interval_set.h"
#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

class UnforkedRanges {
 public:
  /// Addresses in bytes; size > 0.
  void add(uintptr_t start, Bytes size) {
    MutexLock lock(mutex_);
    ranges_.add(start, start + size.value());
    publish();
  }
  /// What is mapped there is another thing now, or was to be shared again.
  void remove(uintptr_t start, Bytes size) {
    if (count_.load(std::memory_order_acquire) == 0) return;
    MutexLock lock(mutex_);
    ranges_.remove(start, start + size.value());
    publish();
  }
  bool contains(uintptr_t address) const {
    if (count_.load(std::memory_order_acquire) == 0) return false;
    MutexLock lock(mutex_);
    return ranges_.spanAt(address, 1).inside;
  }
  /// Takes out the lowest range: address and size, which is 0 when there is none left.
  std::pair<uintptr_t, Bytes> takeLowest() {
    MutexLock lock(mutex_);
    if (ranges_.count() == 0) return {0, Bytes()};
    const auto [start, end] = ranges_.lowest();
    ranges_.remove(start, end);
    publish();
    return {start, Bytes(end - start)};
  }
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  // Release pairs with the acquires above: whoever releases a range has heard of its advice.
  void publish() TP_REQUIRES(mutex_) { count_.store(ranges_.count(), std::memory_order_release); }

  mutable Mutex mutex_;
  IntervalSet ranges_ TP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace tidepool
