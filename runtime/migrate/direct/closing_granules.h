// SPDX-License-Identifier: Apache-2.0
// Granules whose direct pages are closed to writers for a promotion, while nobody holds their lock.
#pragma once

#include <array>
#include <atomic>

#include "runtime/base/check.h"
#include "runtime/space/granule_lock.h"

namespace tidepool {

/// What else is done to such a granule's direct pages spoils its promotion. The migrator's thread
/// adds and ends; any thread asks and spoils. An entry is written and read under the lock of its
/// granule alone, and others only see that it is not theirs: so all of it is relaxed.
class ClosingGranules {
 public:
  static constexpr size_t kMost = 16;

  ClosingGranules() {
    for (auto& entry : entries_) entry.store(kNone, std::memory_order_relaxed);
  }
  /// Returns its place, for end().
  size_t add(const GranuleLock& granule) {
    // It would be finished twice.
    TP_CHECK(!has(granule));
    size_t place = 0;
    while (entries_[place].load(std::memory_order_relaxed) != kNone) {
      ++place;
      TP_CHECK_OP(place, <, kMost);
    }
    entries_[place].store(GranuleIndex(granule).value(), std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
    return place;
  }
  /// Returns whether anything has spoiled it.
  bool end(const GranuleLock& granule, size_t place) {
    TP_CHECK_OP(place, <, kMost);
    const uint64_t found = entries_[place].exchange(kNone, std::memory_order_relaxed);
    TP_CHECK_OP(found & ~kSpoiled, ==, GranuleIndex(granule).value());
    count_.fetch_sub(1, std::memory_order_relaxed);
    return (found & kSpoiled) != 0;
  }
  /// Until end(), a thread that would write waits, and is woken then.
  bool has(const GranuleLock& granule) { return entryOf(granule) != nullptr; }
  /// To be called when direct pages of the granule were erased, opened to writers or mapped anew.
  void spoil(const GranuleLock& granule) {
    if (auto* const entry = entryOf(granule)) entry->fetch_or(kSpoiled, std::memory_order_relaxed);
  }
  /// The same of all, by who holds all locks.
  void spoilAll() {
    for (auto& entry : entries_) {
      if (entry.load(std::memory_order_relaxed) == kNone) continue;
      entry.fetch_or(kSpoiled, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0}, kSpoiled = uint64_t{1} << 63;

  std::atomic<uint64_t>* entryOf(const GranuleLock& granule) {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    for (auto& entry : entries_) {
      const uint64_t value = entry.load(std::memory_order_relaxed);
      if (value != kNone && (value & ~kSpoiled) == GranuleIndex(granule).value()) return &entry;
    }
    return nullptr;
  }

  std::array<std::atomic<uint64_t>, kMost> entries_;
  std::atomic<size_t> count_{0};
};

}  // namespace tidepool
