// SPDX-License-Identifier: Apache-2.0
// Parts of the managed space that core dumps are not to have (MADV_DONTDUMP). The kernel has it by
// mapping; whoever maps something else there tells it anew. Thread-safe; a program that asks for it
// does so for a few ranges, any other pays one load.
#pragma once

#include <atomic>

#include "runtime/base/interval_set.h"
#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Whether an advice holds at an address, and for how many bytes from there that stays so.
struct AdviceSpan {
  bool kept;
  Bytes size;
};

class UndumpedRanges {
 public:
  /// Addresses in bytes; size > 0.
  void add(uintptr_t start, Bytes size) {
    MutexLock lock(mutex_);
    ranges_.add(start, start + size.value());
    publish();
  }
  /// What is mapped there is another thing now, or may be dumped again.
  void remove(uintptr_t start, Bytes size) {
    if (none()) return;
    MutexLock lock(mutex_);
    ranges_.remove(start, start + size.value());
    publish();
  }
  bool none() const { return count_.load(std::memory_order_acquire) == 0; }
  AdviceSpan spanAt(uintptr_t address, Bytes size) const {
    if (none()) return {false, size};
    MutexLock lock(mutex_);
    const IntervalSet::Span span = ranges_.spanAt(address, size.value());
    return {span.inside, Bytes(span.size)};
  }
  /// For fork(), which must find the set whole.
  Mutex& mutex() { return mutex_; }

 private:
  // Release pairs with the acquire above: whoever maps a range anew has heard of its advice.
  void publish() TP_REQUIRES(mutex_) { count_.store(ranges_.count(), std::memory_order_release); }

  mutable Mutex mutex_;
  IntervalSet ranges_ TP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace tidepool
