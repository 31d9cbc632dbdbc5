// SPDX-License-Identifier: Apache-2.0
// One heap of the public API: jemalloc arenas over the heap's own extents. Allocation and free take
// no lock as long as the thread's cache serves them. Thread-safe but for destruction, during which
// nobody uses it. Sizes are bytes. Functions that can fail return null; lastError() says why.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "allocator/arena/tpje.h"
#include "allocator/heap/extents.h"
#include "allocator/heap/thread_record.h"

namespace tidepool {

enum class Fill : uint8_t { kNone, kZero };

struct HeapStats {
  Bytes allocated;  // in blocks, as large as their size classes make them
  Bytes reserved;   // address space taken
  uint64_t allocations = 0;
  uint64_t frees = 0;
  Residency residency;
};

class Heap {
 public:
  /// For the table of heaps. `context` and `ground` outlive it. Errors: kNoMemory.
  static Result<std::unique_ptr<Heap>> create(Context& context, MemorySource* source,
                                              HeapGround& ground, HeapPlan plan, HeapId id);
  /// Frees all that is in it.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  HeapId id() const { return id_; }
  /// True if it lies in memory of the heap.
  bool owns(const void* block) const { return ground_.ownerOf(block) == id_.number; }
  Context& context() { return context_; }

  /// `alignment` is a power of two, at most kMostAlignment. A size of 0 gets a block of its own.
  void* allocate(size_t size, size_t alignment, Fill fill);
  /// `block` is of this heap, as are those below.
  void* reallocate(void* block, size_t size);
  void free(void* block);
  size_t usableSize(const void* block) const;
  HeapStats stats() const;
  /// Gives back free memory.
  void purge();

  /// Why the last call that returned null did, on this thread.
  static Error lastError();

  static constexpr size_t kLeastAlignment = 16;
  static constexpr size_t kMostAlignment = kGiB;

  /// Of threads that have none of their own.
  ThreadRecord& sharedRecord() { return shared_; }

  // For the table of heaps, under its lock: threads come and go, processes fork.
  ThreadRecord* addThread();
  void removeThread(ThreadRecord* record);
  /// In a child of fork(): caches of threads that it does not have are not to be used any more.
  void keepOnlyThread(const ThreadRecord* record);
  Mutex& extentsMutex() { return extents_.mutex(); }

 private:
  static constexpr unsigned kMostArenas = 4;
  struct Hooks {
    TpjeExtentHooks functions;  // first: jemalloc hands its address back
    Extents* extents;
  };

  Heap(Context& context, MemorySource* source, HeapGround& ground, HeapPlan plan, HeapId id);
  ThreadRecord& record() { return findThreadRecord(*this, id_); }
  /// The arena of the next thread, made if need be; 0 if none can be.
  unsigned nextArena();
  /// A control call without arguments on each of them; `command` has "%u" for its number.
  void forArenas(const char* command);
  static Hooks hooksOver(Extents* extents);

  Context& context_;
  const HeapGround& ground_;
  const HeapId id_;
  Extents extents_;
  Hooks hooks_;
  unsigned arena_count_;
  std::array<unsigned, kMostArenas> arenas_{};  // 0: not made yet
  unsigned next_ = 0;
  std::vector<std::unique_ptr<ThreadRecord>> records_;
  ThreadRecord shared_;  // of threads that are gone, or about to end, or too many
};

}  // namespace tidepool
