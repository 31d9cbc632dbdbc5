// SPDX-License-Identifier: Apache-2.0
// The heap for everything that must not live in managed memory: what the runtime itself allocates,
// and what the dynamic linker allocates before the runtime can start. It needs nothing but system
// calls, so it serves the very first malloc of a process. One lock, held for short table updates
// and never while touching managed memory (invariant I2). Thread-safe; owns its address range for
// the life of the process. Sizes are bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/mutex.h"

namespace tidepool {

class InternalHeap {
 public:
  constexpr InternalHeap() = default;
  InternalHeap(const InternalHeap&) = delete;
  InternalHeap& operator=(const InternalHeap&) = delete;

  /// Aligned to at least 16 and to `alignment` (a power of two). Null when memory is exhausted;
  /// does not set errno.
  void* allocate(size_t size, size_t alignment = kMinAlignment) TP_EXCLUDES(mutex_);
  /// As allocate(), zero-filled.
  void* allocateZeroed(size_t size) TP_EXCLUDES(mutex_);
  /// `block` came from allocate() of this heap. A pointer that did not is a broken invariant.
  void release(void* block) TP_EXCLUDES(mutex_);
  /// Bytes that may be used at `block`.
  size_t usableSize(const void* block) TP_EXCLUDES(mutex_);

  /// True for pointers from allocate(); callable from any thread, no lock.
  bool contains(const void* pointer) const {
    return reinterpret_cast<uintptr_t>(pointer) - __atomic_load_n(&base_, __ATOMIC_ACQUIRE) <
           __atomic_load_n(&size_, __ATOMIC_RELAXED);
  }

  /// Around fork(): the child must not inherit the lock in another thread's hands. The thread that
  /// took it may use the heap meanwhile, in the child as well: so do the fork handlers of libraries
  /// that were loaded before ours.
  void lockForFork() TP_LOCKS_BY_HAND {
    mutex_.lock();
    forking_.store(thisThread(), std::memory_order_relaxed);
  }
  void unlockAfterFork() TP_LOCKS_BY_HAND {
    forking_.store(0, std::memory_order_relaxed);
    mutex_.unlock();
  }

  static constexpr size_t kMinAlignment = 16;

 private:
  // The range is cut into chunks; a chunk holds blocks of one size class, or is part of a run of
  // chunks that is one large block.
  static constexpr size_t kChunkShift = 16;
  static constexpr size_t kChunkSize = size_t{1} << kChunkShift;
  static constexpr int kClasses = 36;  // 16 bytes to 16 KiB, four to a power of two
  static constexpr size_t kLargestClass = 16384;
  static constexpr uint32_t kFree = 0, kLargeHead = 1, kLargeTail = 2, kFirstClass = 3;

  struct FreeBlock {
    FreeBlock* next;
  };
  struct Chunk {
    uint32_t kind;   // kFree, kLargeHead, kLargeTail, or kFirstClass + class
    uint32_t count;  // kLargeHead: chunks in the run
  };

  static uintptr_t thisThread() { return reinterpret_cast<uintptr_t>(__builtin_thread_pointer()); }

  /// Holds the heap's lock, which the thread may hold already: between lockForFork() and
  /// unlockAfterFork().
  class TP_SCOPED_CAPABILITY Turn {
   public:
    // Relaxed: a thread reads what it has stored itself, or something that is not itself.
    explicit Turn(InternalHeap& heap) TP_ACQUIRE(heap.mutex_) TP_LOCKS_BY_HAND
        : mutex_(heap.mutex_),
          takes_(heap.forking_.load(std::memory_order_relaxed) != thisThread()) {
      if (takes_) mutex_.lock();
    }
    ~Turn() TP_RELEASE() TP_LOCKS_BY_HAND {
      if (takes_) mutex_.unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Mutex& mutex_;
    const bool takes_;
  };

  /// On the stack that the thread is on.
  void* allocateHere(size_t size, size_t alignment) TP_EXCLUDES(mutex_);
  void releaseHere(void* block) TP_EXCLUDES(mutex_);
  size_t usableSizeHere(const void* block) TP_EXCLUDES(mutex_);
  static int classOf(size_t size);
  static size_t classSize(int size_class);
  bool reserve() TP_REQUIRES(mutex_);
  size_t takeRun(size_t chunks) TP_REQUIRES(mutex_);
  void* allocateLarge(size_t size, size_t alignment) TP_REQUIRES(mutex_);
  void* carve(int size_class) TP_REQUIRES(mutex_);
  size_t chunkOf(const void* block) const {
    return (reinterpret_cast<uintptr_t>(block) - base_) >> kChunkShift;
  }
  std::byte* chunkAddress(size_t chunk) const {
    return reinterpret_cast<std::byte*>(base_ + (chunk << kChunkShift));
  }

  Mutex mutex_;
  std::atomic<uintptr_t> forking_{0};  // the thread that holds mutex_ around a fork
  uintptr_t base_ = 0;
  uintptr_t size_ = 0;                             // 0 until the first allocation
  Chunk* chunks_ TP_GUARDED_BY(mutex_) = nullptr;  // one a chunk; untouched parts cost nothing
  size_t used_chunks_ TP_GUARDED_BY(mutex_) = 0;   // all chunks from here on were never used
  size_t search_from_ TP_GUARDED_BY(mutex_) = 0;   // no free chunk lies below
  FreeBlock* free_[kClasses] TP_GUARDED_BY(mutex_) = {};
  // What of each class's newest chunk was never given out; null: nothing.
  std::byte* fresh_[kClasses] TP_GUARDED_BY(mutex_) = {};
};

/// The heap of this process. Constant-initialised: usable before any constructor has run.
InternalHeap& internalHeap();

}  // namespace tidepool
