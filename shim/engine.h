// SPDX-License-Identifier: Apache-2.0
// Starts Tidepool in a preloaded process, once: at the first allocation or mapping after libc is
// up, or in our constructor. If it cannot start, the process keeps libc's allocator (invariant I6).
// Thread-safe. `managed_runtime` is set before any thread is bound, and never freed: threads of the
// program may still run when its destructors do.
#pragma once

#include <cstddef>

#include "runtime/runtime.h"
#include "shim/internal_scope.h"

namespace tidepool {

extern Runtime* managed_runtime;  // null: not started, or not managing

/// The options in force; meaningful once managed_runtime is set.
const Options& engineOptions();
/// The process that started the runtime: a child of fork() or vfork() is another.
int enginePid();

/// Starts the engine if need be and binds the calling thread. Returns kUnbound while the engine
/// cannot start yet or is being started: the internal heap serves meanwhile.
ThreadMode bindThread();

inline ThreadMode threadMode() {
  return t_thread_mode != ThreadMode::kUnbound ? t_thread_mode : bindThread();
}

/// Starts the engine if need be; true if it manages this process. Binds nothing.
bool startedManaging();

/// Whether the calling thread's mappings are managed. A thread that maps and never allocates is not
/// bound, and so takes none of the heap's locks: a copy of the process made meanwhile, of which
/// nobody is told (_Fork), would have them for good.
inline bool managing() {
  if (t_thread_mode == ThreadMode::kUnbound) return startedManaging();
  return t_thread_mode == ThreadMode::kManaged;
}

/// The managed range, cached in two words for free()'s fast path. Empty: nothing is managed.
struct ManagedBounds {
  uintptr_t base = 0;
  uintptr_t size = 0;
};
extern ManagedBounds managed_bounds;

inline bool isManaged(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - managed_bounds.base < managed_bounds.size;
}

/// The allocator behind ours. Filled when the engine starts; for blocks that are not ours, and for
/// everything when Tidepool is not managing memory.
struct LibcAllocator {
  void* (*malloc)(size_t) = nullptr;
  void* (*calloc)(size_t, size_t) = nullptr;
  void* (*realloc)(void*, size_t) = nullptr;
  void* (*memalign)(size_t, size_t) = nullptr;
  void (*free)(void*) = nullptr;
  size_t (*malloc_usable_size)(void*) = nullptr;
  int (*malloc_trim)(size_t) = nullptr;
};
extern LibcAllocator libc_allocator;

}  // namespace tidepool
