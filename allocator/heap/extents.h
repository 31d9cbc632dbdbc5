// SPDX-License-Identifier: Apache-2.0
// The memory that one heap has: whole granules, taken from managed memory or from ordinary local
// memory as the heap's plan says, and entered in the table of owners. Thread-safe: called by
// jemalloc's hooks, under its locks; its own lock is taken under those.
#pragma once

#include <optional>

#include "allocator/context.h"
#include "allocator/heap/heap_plan.h"
#include "allocator/heap/owner_table.h"
#include "allocator/heap/plain_range.h"
#include "runtime/base/interval_set.h"
#include "runtime/base/mutex.h"

namespace tidepool {

/// What extents of every heap are entered in.
struct HeapGround {
  OwnerTable managed;
  OwnerTable plain;
  std::unique_ptr<PlainRange> plain_range;

  HeapNumber ownerOf(const void* address) const {
    if (const HeapNumber owner = managed.of(address)) return owner;
    return plain.of(address);
  }
};

class Extents {
 public:
  /// `source` may be null for a plan that isPlain(). All outlive it.
  Extents(Context& context, MemorySource* source, HeapGround& ground, HeapPlan plan,
          HeapNumber number);
  /// Gives back everything.
  ~Extents();
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  /// Zero-filled. Null: see takeError().
  void* take(Bytes size, Bytes alignment);
  /// False if it is to be kept, and discarded: it is too small to be worth giving back.
  bool give(void* address, Bytes size);
  bool discard(void* address, Bytes size);
  /// From now on nothing is given back piece by piece, nor discarded: all of it will be at once.
  void close() { closing_.store(true, std::memory_order_relaxed); }

  /// Where the pages are. Plain memory counts as local, whether touched or not.
  Residency residency() const;
  /// Address space taken.
  Bytes size() const;
  /// For fork(), which must find it whole.
  Mutex& mutex() { return mutex_; }

  /// Why take() failed on this thread last, since this was last asked; nothing: it has not.
  static std::optional<Error> takeError();

 private:
  bool isPlain() const { return plan_.isPlain(); }
  Result<uintptr_t> takePlain(Bytes size, Bytes alignment);
  Result<uintptr_t> takeManaged(Bytes size, Bytes alignment);
  Status placeGranules(uintptr_t start, Bytes size) TP_REQUIRES(mutex_);
  bool discardPart(uintptr_t start, uintptr_t end);
  bool renewPart(uintptr_t start, uintptr_t end);
  void giveBack(uintptr_t start, Bytes size);
  Bytes keptLocal(uintptr_t start, Bytes size) const TP_REQUIRES(mutex_);

  Context& context_;
  MemorySource* const source_;
  HeapGround& ground_;
  const HeapPlan plan_;
  const HeapNumber number_;
  std::atomic<bool> closing_{false};
  mutable Mutex mutex_;
  IntervalSet taken_ TP_GUARDED_BY(mutex_);
  IntervalSet kept_local_ TP_GUARDED_BY(mutex_);  // managed granules that the plan keeps local
  size_t turn_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
