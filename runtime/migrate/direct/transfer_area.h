// SPDX-License-Identifier: Apache-2.0
// Addresses of our own through which pages move between the space and direct tiers.
#pragma once

#include <atomic>

#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/migrate/core/core.h"

namespace tidepool {

/// Two granules: one for pages on their way out, one for the way in. Accesses meanwhile wait in a
/// fault, or go on reading, and find the same bytes. Used by any thread that holds the lock of the
/// pages' granule, and then mutex().
class TransferArea {
 public:
  /// Errors: kNoMemory.
  static Result<Mapping> reserve();
  TransferArea(Core& core, Mapping area)
      : core_(core), area_(std::move(area)), out_(reinterpret_cast<uintptr_t>(area_.data())) {}
  /// Before use, and in a child of fork(): arms it with the process's own port.
  Status renew();
  Mutex& mutex() TP_RETURNS(mutex_) { return mutex_; }

  /// Takes local pages out of the space and copies them to `to`. False: not all have left, and
  /// they are to be put back.
  bool copyOut(const GranuleLock& granule, PageIndex first, uint64_t pages, std::byte* to)
      TP_REQUIRES(mutex_);
  /// Once something else is mapped in their place.
  void freeCopies(PageIndex first, uint64_t pages) TP_REQUIRES(mutex_);
  void putBack(const GranuleLock& granule, PageIndex first, uint64_t pages) TP_REQUIRES(mutex_);
  /// Makes direct pages, which are closed to writers, local. They have their home still. False:
  /// there are no mappings left.
  bool swapIn(const GranuleLock& granule, PageIndex first, uint64_t pages) TP_REQUIRES(mutex_);
  /// Direct pages whose frames are gone: from now on a touch ends the program.
  void poison(const GranuleLock& granule, PageIndex first, uint64_t pages) TP_REQUIRES(mutex_);
  /// The granule for the way in.
  uintptr_t fillAddress() const TP_REQUIRES(mutex_) { return out_ + kGranuleSize; }

  void countMoved(StatCounter& moves, StatCounter& bytes, uint64_t pages);
  /// Bytes moved since the start, in both directions. Thread-safe.
  Bytes moved() const { return Bytes(moved_.load(std::memory_order_relaxed)); }

 private:
  uintptr_t slotOf(PageIndex page) const {
    return out_ + page.value() % kPagesPerGranule * kPageSize;
  }

  Core& core_;
  Mutex mutex_;
  Mapping area_;
  const uintptr_t out_;
  std::atomic<uint64_t> moved_{0};
};

}  // namespace tidepool
