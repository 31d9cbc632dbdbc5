// SPDX-License-Identifier: Apache-2.0
// All heaps of the process by number: making and destroying them, finding the heap of a block, the
// records of threads that end, and fork(). Thread-safe. Its lock is the outermost of the heaps':
// jemalloc's come after it, then those of extents, then the process's memory.
#pragma once

#include <array>
#include <memory>

#include "allocator/heap/heap.h"

namespace tidepool {

class HeapTable {
 public:
  static HeapTable& instance();

  /// Makes one. Errors: kNoSpace if there are kMostHeaps, kNoMemory; of a plan that is not plain,
  /// as for starting memory.
  Result<Heap*> create(Context& context, HeapPlan plan);
  /// Frees all that is in it. Nobody uses it any more.
  void destroy(Heap* heap);

  /// True if it is in memory that heaps pinned to local memory have.
  bool isPlain(const void* address) const { return ground_.plain.of(address) != 0; }
  HeapStats stats(const Heap& heap);
  /// Gives back what it holds of free memory, but for what threads have in their caches.
  void trim(Heap& heap);

  // The calling thread.
  ThreadRecord* recordFor(Heap& heap);
  void leave(ThreadTable* table);

  void lockForFork();
  void unlockInParent();
  void unlockInChild();

 private:
  Status start(const Options& options) TP_REQUIRES(mutex_);
  Status prepareGround(const HeapPlan& plan, MemorySource* source) TP_REQUIRES(mutex_);
  void lockInner();
  void unlockInner();

  Mutex mutex_;
  bool started_ TP_GUARDED_BY(mutex_) = false;
  HeapGround ground_;
  // Entry 0 stays empty. Numbers are reused as late as possible.
  std::array<std::unique_ptr<Heap>, ThreadTable::kMostHeaps> heaps_ TP_GUARDED_BY(mutex_);
  size_t next_ TP_GUARDED_BY(mutex_) = 1;
  uint32_t generation_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
