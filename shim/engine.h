// SPDX-License-Identifier: Apache-2.0
// Starts Tidepool in a preloaded process, once: when the process has come to use memory that is
// worth managing. Until then it is asleep: libc's allocator and the kernel serve, and a process
// that stays small (a shell's children, a compiler's driver) costs what it costs without us.
// Programs with an allocator of their own, and those that ask for it (start:now, strict:true), are
// managed from the start. If it cannot start, the process keeps libc's allocator (invariant I6).
// Thread-safe. `managed_runtime` is set before any thread is bound, and never freed: threads of the
// program may still run when its destructors do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/runtime.h"
#include "shim/internal_scope.h"
#include "shim/managed_bounds.h"

namespace tidepool {

extern Runtime* managed_runtime;  // null: not started, or not managing

/// The options in force; null if what the environment says cannot be parsed. Meaningful once the
/// engine is prepared, as it is in every constructor of the program's. Waits for another thread
/// that starts it.
const Options* engineOptions();
/// Whether the options name a file for statistics. Makes no system call: a sandboxed program may be
/// forbidden any.
bool wantsStats();
/// Whether this is the process that was executed, not a child of fork() or vfork().
bool isExecutedProcess();

/// Binds the calling thread if the engine runs. Returns kUnbound while the engine is being prepared
/// (the internal heap serves meanwhile), and kAsleep while it is not needed.
ThreadMode bindThread();

inline ThreadMode threadMode() {
  return t_thread_mode != ThreadMode::kUnbound ? t_thread_mode : bindThread();
}

/// Starts the engine if it is asleep; true if it manages this process. Waits for another thread
/// that starts it. Binds nothing. Not to be called where libc may hold a lock of its own.
bool wake();

/// Calls `set(argument)`, which puts a seccomp filter on the process, or on a thread of it, and
/// returns 0 if it did. A process that is not managed by then stays with libc: beginning takes
/// calls that the filter may forbid.
long setFilter(long (*set)(void*), void* argument);
template <typename Set>
long setFilter(Set set) {
  return setFilter([](void* it) -> long { return (*static_cast<Set*>(it))(); }, &set);
}

/// Bytes that libc's allocator holds for a process that is asleep; counted by its blocks.
extern std::atomic<int64_t> asleep_bytes;
/// At so many bytes it is worth waking. Written while the engine is prepared.
extern int64_t wake_at;
bool isLibcs(const void* caller);

/// Whether libc's heap holds so much that a request of `size` bytes is to be managed. `caller` is
/// where the program's call returns to: libc itself is never made to wait for a start.
inline bool isWorthWaking(size_t size, const void* caller) {
  const int64_t room = wake_at - asleep_bytes.load(std::memory_order_relaxed);
  return (room <= 0 || size >= static_cast<size_t>(room)) && !isLibcs(caller);
}

enum class EngineState : uint32_t { kUnprepared, kPreparing, kAsleep, kStarting, kManaged, kLibc };
extern std::atomic<EngineState> engine_state;

/// True while no memory is managed, though some may be later. Acquire: what the state stands for is
/// complete.
inline bool isAsleep() {
  const EngineState state = engine_state.load(std::memory_order_acquire);
  return state == EngineState::kAsleep || state == EngineState::kStarting;
}

/// Whether the calling thread's mappings are managed. A thread that maps and never allocates is not
/// bound, and so takes none of the heap's locks: a copy of the process made meanwhile, of which
/// nobody is told (_Fork), would have them for good.
bool managesUnbound();
inline bool managing() {
  if (t_thread_mode == ThreadMode::kUnbound) return managesUnbound();
  return t_thread_mode == ThreadMode::kManaged;
}

/// Around fork(), before all else: no start is under way in the child. Returns whether memory is
/// managed.
bool lockEngine();
void unlockEngine();
void unlockEngineInChild();

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
