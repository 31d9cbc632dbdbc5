// SPDX-License-Identifier: Apache-2.0
// Parts of the managed space of which something holds that the kernel or a child of fork() has to
// be told: what the program has mapped there itself (foreign), what children are not to have
// (MADV_DONTFORK), what core dumps are not to have (MADV_DONTDUMP). Thread-safe. A program for
// which nothing of the kind holds pays one load.
#pragma once

#include <atomic>
#include <utility>

#include "runtime/base/interval_set.h"
#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Whether it holds at an address, and for how many bytes from there that stays so.
struct RangeSpan {
  bool inside;
  Bytes size;
};

class AddressRanges {
 public:
  /// Addresses in bytes; size > 0.
  void add(uintptr_t start, Bytes size) {
    MutexLock lock(mutex_);
    ranges_.add(start, start + size.value());
    publish();
  }
  void remove(uintptr_t start, Bytes size) {
    if (none()) return;
    MutexLock lock(mutex_);
    ranges_.remove(start, start + size.value());
    publish();
  }
  bool none() const { return count_.load(std::memory_order_acquire) == 0; }
  /// Looks no further than `size` (> 0).
  RangeSpan spanAt(uintptr_t address, Bytes size) const {
    if (none()) return {false, size};
    MutexLock lock(mutex_);
    return spanLocked(address, size);
  }
  bool contains(uintptr_t address) const { return spanAt(address, Bytes(1)).inside; }
  /// True if it holds for any of [start, start + size).
  bool touches(uintptr_t start, Bytes size) const {
    const RangeSpan span = spanAt(start, size);
    return span.inside || span.size < size;
  }
  /// Calls `act(start, size)` for what of [start, end) lies outside, upwards, with the set locked;
  /// stops and returns when it fails.
  template <typename Act>
  auto forEachOutside(uintptr_t start, uintptr_t end, Act act) const
      -> decltype(act(start, Bytes())) {
    MutexLock lock(mutex_);
    while (start < end) {
      const RangeSpan span = spanLocked(start, Bytes(end - start));
      if (!span.inside) {
        if (auto done = act(start, span.size); !done) return done;
      }
      start += span.size.value();
    }
    return {};
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
  RangeSpan spanLocked(uintptr_t address, Bytes size) const TP_REQUIRES(mutex_) {
    const IntervalSet::Span span = ranges_.spanAt(address, size.value());
    return {span.inside, Bytes(span.size)};
  }
  // Release pairs with the acquire above: whoever maps or releases a range has heard of what holds.
  void publish() TP_REQUIRES(mutex_) { count_.store(ranges_.count(), std::memory_order_release); }

  mutable Mutex mutex_;
  IntervalSet ranges_ TP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace tidepool
