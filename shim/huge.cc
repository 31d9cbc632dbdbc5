// SPDX-License-Identifier: Apache-2.0
// Huge blocks: a table of Runtime allocations by address. The lock covers the table alone, never a
// call to the Runtime nor an access to managed memory (invariant I2). The table's own memory comes
// from the internal heap. Sizes are bytes.
#include <algorithm>
#include <map>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "shim/engine.h"
#include "shim/internal_scope.h"
#include "shim/managed_heap.h"

namespace tidepool {
namespace {

constinit Mutex huge_mutex;

// Made on first use and never destroyed: late destructors of the program still free blocks.
std::map<uintptr_t, size_t>& hugeTable() TP_REQUIRES(huge_mutex) {
  alignas(
      std::map<uintptr_t, size_t>) static std::byte storage[sizeof(std::map<uintptr_t, size_t>)];
  static constinit std::map<uintptr_t, size_t>* table = nullptr;
  if (table == nullptr) table = new (storage) std::map<uintptr_t, size_t>();
  return *table;
}

void remember(void* block, size_t size) {
  MutexLock lock(huge_mutex);
  hugeTable()[reinterpret_cast<uintptr_t>(block)] = size;
}

/// Takes `block` out of the table; its size, or 0 if it was not there.
size_t forget(void* block) {
  MutexLock lock(huge_mutex);
  const auto found = hugeTable().find(reinterpret_cast<uintptr_t>(block));
  if (found == hugeTable().end()) return 0;
  const size_t size = found->second;
  hugeTable().erase(found);
  return size;
}

}  // namespace

void* allocateHuge(size_t size, size_t alignment) {
  if (size > PTRDIFF_MAX) return nullptr;
  InternalScope scope;
  size = roundUp(std::max<size_t>(size, 1), kPageSize);
  auto block =
      managed_runtime->allocate(Bytes(size), Bytes(std::max<size_t>(alignment, kGranuleSize)));
  if (!block) return nullptr;
  TP_CHECK(maybeHuge(*block));
  remember(*block, size);
  return *block;
}

size_t hugeSize(const void* block) {
  InternalScope scope;
  MutexLock lock(huge_mutex);
  const auto found = hugeTable().find(reinterpret_cast<uintptr_t>(block));
  return found == hugeTable().end() ? 0 : found->second;
}

bool releaseHuge(void* block) {
  InternalScope scope;
  // Out of the table first: as soon as the range is released, another thread may be given it.
  const size_t size = forget(block);
  if (size == 0) return false;
  const Status released = managed_runtime->release(block, Bytes(size));
  TP_CHECK(released.has_value());
  return true;
}

void* resizeHuge(void* block, size_t new_size) {
  if (new_size > PTRDIFF_MAX) return nullptr;
  InternalScope scope;
  new_size = roundUp(new_size, kPageSize);
  const size_t old_size = forget(block);
  if (old_size == 0) return nullptr;
  if (new_size == old_size) {
    remember(block, old_size);
    return block;
  }
  auto moved = managed_runtime->resize(block, Bytes(old_size), Bytes(new_size));
  if (!moved) {
    remember(block, old_size);
    return nullptr;
  }
  TP_CHECK(maybeHuge(*moved));
  remember(*moved, new_size);
  return *moved;
}

void lockHugeTable() TP_NO_THREAD_SAFETY { huge_mutex.lock(); }
void unlockHugeTable() TP_NO_THREAD_SAFETY { huge_mutex.unlock(); }

}  // namespace tidepool
