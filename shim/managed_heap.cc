// SPDX-License-Identifier: Apache-2.0
// jemalloc over the managed space: its settings, the extent hooks that call the Runtime, and the
// arenas that threads are bound to. Hooks run under jemalloc's locks, which no service thread
// takes.
#include "shim/managed_heap.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <new>

#include "allocator/arena/arena_maker.h"
#include "allocator/arena/heap_metadata.h"
#include "allocator/arena/settings.h"
#include "allocator/arena/tpje.h"
#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/mutex.h"
#include "shim/arena_slots.h"
#include "shim/internal_scope.h"

extern "C" {
// jemalloc reads its settings from this variable when it is first called.
__attribute__((used)) const char* tpje_malloc_conf = nullptr;
}

namespace tidepool {
namespace {

// Free extents from this size up go back to the Runtime whole; smaller ones are kept by the arena
// (discarded, so that they hold no memory) and spare the Runtime's range tables from crumbs.
constexpr size_t kReturnAboveBytes = 8 * kMiB;
// Largest step by which an arena grows ahead of need.
constexpr Bytes kGrowLimit(16 * kMiB);
constexpr unsigned kArenasPerCpu = 4;
constinit Runtime* heap_runtime = nullptr;
constinit Mutex arena_mutex;
constinit ArenaSlots arena_slots TP_GUARDED_BY(arena_mutex);
// By slot; 0: not made yet.
constinit std::array<unsigned, ArenaSlots::kMost> arena_ids TP_GUARDED_BY(arena_mutex) = {};

// Its value in a thread is the thread's slot and one more; its destructor tells that the thread
// ends. Without it (a process may have too few keys) slots are given out in turn.
constinit pthread_key_t slot_key = 0;
constinit bool have_slot_key = false;

void* extentAlloc(TpjeExtentHooks*, void* wanted, size_t size, size_t alignment, bool* zero,
                  bool* commit, unsigned) {
  if (wanted != nullptr) return nullptr;  // growth in place is the Runtime's business
  InternalScope scope;
  if (size >= kGranuleSize) alignment = std::max<size_t>(alignment, kGranuleSize);
  auto range = heap_runtime->allocate(Bytes(size), Bytes(alignment), RangeUse::kHeap);
  if (!range) return nullptr;
  *zero = true;  // fresh managed memory is zero: calloc need not touch it
  *commit = true;
  return *range;
}

// True tells jemalloc to keep the extent (and to purge it next).
bool extentDalloc(TpjeExtentHooks*, void* address, size_t size, bool, unsigned) {
  if (size < kReturnAboveBytes) return true;
  InternalScope scope;
  return !heap_runtime->release(address, Bytes(size)).has_value();
}

void extentDestroy(TpjeExtentHooks*, void* address, size_t size, bool, unsigned) {
  InternalScope scope;
  // Nobody is left to tell; a range that cannot be released stays reserved.
  static_cast<void>(heap_runtime->release(address, Bytes(size)));
}

bool extentPurgeForced(TpjeExtentHooks*, void* address, size_t, size_t offset, size_t length,
                       unsigned) {
  InternalScope scope;
  return !heap_runtime->discard(static_cast<std::byte*>(address) + offset, Bytes(length))
              .has_value();
}

constinit TpjeExtentHooks extent_hooks = {
    extentAlloc, extentDalloc,      extentDestroy, nullptr,    nullptr,
    nullptr,     extentPurgeForced, allowSplit,    allowMerge,
};

unsigned arenaOfSlot(unsigned slot) TP_REQUIRES(arena_mutex) {
  if (arena_ids[slot] == 0) arena_ids[slot] = makeArena(&extent_hooks, kGrowLimit);
  return arena_ids[slot];
}

void* keyValue(unsigned slot) { return reinterpret_cast<void*>(uintptr_t{slot} + 1); }
unsigned slotOf(const void* key_value) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(key_value) - 1);
}

// The thread may allocate after this, in other destructors: it keeps the arena, uncounted.
void leaveSlot(void* key_value) {
  InternalMark mark;
  MutexLock lock(arena_mutex);
  arena_slots.leave(slotOf(key_value));
}

unsigned usableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

/// Before the first call of jemalloc.
void settleSettings(const Options& options, unsigned cpus) {
  const Bytes local = options.dram.value() != 0 ? options.dram : localMemory();
  static char text[kArenaSettingsCapacity];
  writeArenaSettings(text, threadCacheShape(local, cpus),
                     options.far_count > 0 ? FreeMemory::kIsWanted : FreeMemory::kIsNot);
  tpje_malloc_conf = text;
}

}  // namespace

Status startManagedHeap(Runtime& runtime, const Options& options) {
  if (!reserveHeapMetadata() || !startHugeBlocks(runtime)) {
    return fail(
        ErrorCode::kNoMemory,
        "no address space for the heap's tables; raise the address-space limit (ulimit -v)");
  }
  heap_runtime = &runtime;
  const unsigned cpus = usableCpus();
  settleSettings(options, cpus);
  have_slot_key = pthread_key_create(&slot_key, leaveSlot) == 0;
  MutexLock lock(arena_mutex);
  arena_slots.setCount(cpus * kArenasPerCpu);
  if (arenaOfSlot(0) == 0) {
    return fail(ErrorCode::kInternal, "the heap cannot start; give the program more memory");
  }
  return {};
}

void bindThreadToArena() {
  TP_CHECK(t_thread_mode == ThreadMode::kInternal);
  unsigned slot, id;
  {
    MutexLock lock(arena_mutex);
    slot = arena_slots.join();
    id = arenaOfSlot(slot);
    if (id == 0) id = arenaOfSlot(0);
  }
  // If this fails, the thread is counted beyond its end: the slots fill up evenly.
  if (have_slot_key) static_cast<void>(pthread_setspecific(slot_key, keyValue(slot)));
  const int error = tpje_mallctl("thread.arena", nullptr, nullptr, &id, sizeof id);
  TP_CHECK_OP(error, ==, 0);
}

void lockArenaTable() TP_LOCKS_BY_HAND { arena_mutex.lock(); }
void unlockArenaTable() TP_LOCKS_BY_HAND { arena_mutex.unlock(); }

void unlockArenaTableInChild() TP_LOCKS_INHERITED {
  const void* value = have_slot_key ? pthread_getspecific(slot_key) : nullptr;
  if (value != nullptr) arena_slots.keepOnly(slotOf(value));
  arena_mutex.unlock();
}

void renewArenaTableInChild() TP_LOCKS_INHERITED {
  new (&arena_mutex) Mutex();
  arena_mutex.lock();
  unlockArenaTableInChild();
}

}  // namespace tidepool
