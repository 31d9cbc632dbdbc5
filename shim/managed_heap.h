// SPDX-License-Identifier: Apache-2.0
// The program's heap inside the managed space: jemalloc arenas whose extents come from the Runtime,
// and huge blocks that are Runtime allocations of their own. Thread-safe once started. Sizes are
// bytes. Functions that can fail return null and leave errno to the caller.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/runtime.h"
#include "shim/engine.h"

namespace tidepool {

/// Blocks this large bypass jemalloc (the same bound at which glibc always calls mmap): one Runtime
/// allocation each, returned the moment it is freed. Below it, jemalloc reuses memory that is warm.
inline constexpr size_t kHugeBytes = 32 * kMiB;
/// Alignments above this are huge too: jemalloc would have to over-allocate for them.
inline constexpr size_t kLargestArenaAlignment = kGranuleSize;

/// Starts both. Call once, in an InternalScope, before any thread is bound.
Status startManagedHeap(Runtime& runtime, const Options& options);

/// Sets up the table of huge blocks; part of startManagedHeap(). False when there is no memory.
bool startHugeBlocks(Runtime& runtime);

/// Gives the calling thread an arena, one that few living threads use. Call in an InternalScope.
void bindThreadToArena();

/// `size` >= kHugeBytes or `alignment` > kLargestArenaAlignment. Zero-filled, granule-aligned.
void* allocateHuge(size_t size, size_t alignment);
/// False if `block` is not a huge block.
bool releaseHuge(void* block);
/// Moves or resizes a block that is huge; null (it stays as it was) when that cannot be done.
void* resizeHuge(void* block, size_t new_size);

/// Sizes of huge blocks by the granule they begin on, counted from the start of the managed space;
/// 0 where none begins. Written once, before any thread is bound.
extern std::atomic<uint64_t>* huge_sizes;

/// Every huge block is granule-aligned: false for nearly every other pointer.
inline bool maybeHuge(const void* block) {
  return (reinterpret_cast<uintptr_t>(block) & (kGranuleSize - 1)) == 0;
}

/// Size of a huge block; 0 if `block`, which is managed, is not one. Inline and without a lock, for
/// free(). Relaxed: a block reaches another thread by the program's own synchronisation, which
/// orders its entry with it; entries of different blocks have nothing to do with each other.
inline size_t hugeSize(const void* block) {
  if (!maybeHuge(block)) return 0;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(block) - managed_bounds.base;
  return huge_sizes[offset >> kGranuleShift].load(std::memory_order_relaxed);
}

/// Around fork(): the table of arenas must not be caught half changed. Its lock is outside
/// jemalloc's.
void lockArenaTable();
void unlockArenaTable();
void unlockArenaTableInChild();

/// In a child that was made without them, by a thread that held no lock of Tidepool's: another may
/// have held this one. Whatever it was changing there is one word, old or new.
void renewArenaTableInChild();

}  // namespace tidepool
