// SPDX-License-Identifier: Apache-2.0
// Huge blocks: Runtime allocations of their own. Every one begins on a granule, so a table of sizes
// indexed by granule (8 bytes in 2 MiB of space that is used) says what is one, without a lock.
// Nothing here touches managed memory. Sizes are bytes.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "allocator/arena/raw_syscalls.h"
#include "runtime/base/check.h"
#include "runtime/base/mapping.h"
#include "shim/engine.h"
#include "shim/internal_scope.h"
#include "shim/managed_heap.h"

namespace tidepool {

constinit std::atomic<uint64_t>* huge_sizes = nullptr;

namespace {

using SizeEntry = std::atomic<uint64_t>;  // 0: no huge block begins here

constinit Runtime* huge_runtime = nullptr;

SizeEntry& entryOf(const void* block) {
  return huge_sizes[(reinterpret_cast<uintptr_t>(block) - huge_runtime->base()) >> kGranuleShift];
}

void remember(void* block, size_t size) { entryOf(block).store(size, std::memory_order_relaxed); }

}  // namespace

bool startHugeBlocks(Runtime& runtime) {
  // Two granules more: the range need not begin or end on one.
  const size_t entries = (runtime.size().value() >> kGranuleShift) + 2;
  auto table = Mapping::anonymous(Bytes(entries * sizeof(SizeEntry)));
  if (!table) return false;
  huge_sizes = reinterpret_cast<SizeEntry*>(table->data());
  table->abandon();
  huge_runtime = &runtime;
  return true;
}

void* allocateHuge(size_t size, size_t alignment) {
  if (size > PTRDIFF_MAX) return nullptr;
  InternalScope scope;
  size = roundUp(std::max<size_t>(size, 1), kPageSize);
  auto block = huge_runtime->allocate(Bytes(size), Bytes(std::max<size_t>(alignment, kGranuleSize)),
                                      RangeUse::kHeap);
  if (!block) return nullptr;
  TP_CHECK(maybeHuge(*block));
  remember(*block, size);
  return *block;
}

bool releaseHuge(void* block) {
  if (hugeSize(block) == 0) return false;
  // Out of the table first: as soon as the range is released, another thread may be given it.
  const size_t size = entryOf(block).exchange(0, std::memory_order_relaxed);
  if (size == 0) return false;
  InternalScope scope;
  const Status released = huge_runtime->release(block, Bytes(size));
  TP_CHECK(released.has_value());
  return true;
}

namespace {

/// A part of it is not the runtime's any more, which could not tell where that is.
void* moveHuge(void* block, size_t old_size, size_t new_size) {
  remember(block, old_size);
  void* const moved = allocateHuge(new_size, kGranuleSize);
  if (moved == nullptr) return nullptr;
  memcpy(moved, block, std::min(old_size, new_size));
  TP_CHECK(releaseHuge(block));
  return moved;
}

}  // namespace

void* resizeHuge(void* block, size_t new_size) {
  if (new_size > PTRDIFF_MAX) return nullptr;
  new_size = roundUp(new_size, kPageSize);
  const size_t old_size = entryOf(block).exchange(0, std::memory_order_relaxed);
  TP_CHECK_OP(old_size, !=, 0);
  if (new_size == old_size) {
    remember(block, old_size);
    return block;
  }
  const OwnerSpan span = huge_runtime->ownerAt(block, Bytes(old_size));
  if (span.owner != Owner::kRuntime || span.size < Bytes(old_size)) {
    return moveHuge(block, old_size, new_size);
  }
  InternalScope scope;
  // On a granule again: free() would not know it elsewhere.
  const auto moved =
      huge_runtime->resize(block, Bytes(old_size), Bytes(new_size), Bytes(kGranuleSize));
  if (!moved) {
    remember(block, old_size);
    return nullptr;
  }
  TP_CHECK(maybeHuge(*moved));
  remember(*moved, new_size);
  return *moved;
}

}  // namespace tidepool
