// SPDX-License-Identifier: Apache-2.0
// jemalloc over the managed space: its settings, the extent hooks that call the Runtime, and the
// arenas that threads are bound to. Hooks run under jemalloc's locks, which no service thread
// takes.
#include "shim/managed_heap.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>

#include "runtime/base/check.h"
#include "runtime/base/mutex.h"
#include "shim/heap_metadata.h"
#include "shim/internal_scope.h"
#include "shim/tpje.h"

// narenas:1            automatic arenas would take memory from outside the managed space; ours are
//                      made by hand, with hooks.
// oversize_threshold:0 the same: no automatic arena for large blocks.
// retain               on: small extents are cut from larger ones rather than asked for singly.
// *_decay_ms           memory that stays free for a second is discarded in every tier, at once.
// zero_realloc         as glibc: realloc(p, 0) frees.
// tcache_*             blocks up to 1 MiB are recycled within a thread, a few of the large ones:
// the
//                      way through the arena costs ten times as much.
// slab_sizes           64 KiB slabs for the larger small blocks, which otherwise get one each.
// thp                  the runtime works in 4 KiB pages: huge pages are its decision.
extern "C" {
// jemalloc reads its settings from this variable.
__attribute__((used)) const char* tpje_malloc_conf =
    "narenas:1,oversize_threshold:0,retain:true,dirty_decay_ms:1000,"
    "muzzy_decay_ms:0,background_thread:false,dss:disabled,zero_realloc:free,thp:default,"
    "percpu_arena:disabled,abort_conf:false,tcache_max:1048576,"
    "tcache_nslots_large:8,tcache_nslots_small_min:64,slab_sizes:2048-14336:16";
}

namespace tidepool {
namespace {

// Free extents from this size up go back to the Runtime whole; smaller ones are kept by the arena
// (discarded, so that they hold no memory) and spare the Runtime's range tables from crumbs.
constexpr size_t kReturnAboveBytes = 8 * kMiB;
// Largest step by which an arena grows ahead of need.
constexpr size_t kGrowLimitBytes = 16 * kMiB;
constexpr size_t kMaxArenas = 256;
constexpr unsigned kArenasPerCpu = 4;

constinit Runtime* heap_runtime = nullptr;
constinit std::atomic<unsigned> arena_ids[kMaxArenas] = {};  // 0: not made yet
constinit unsigned arena_slots = 1;
constinit std::atomic<unsigned> next_slot{0};
constinit Mutex arena_mutex;  // serialises the making of arenas

void* extentAlloc(TpjeExtentHooks*, void* wanted, size_t size, size_t alignment, bool* zero,
                  bool* commit, unsigned) {
  if (wanted != nullptr) return nullptr;  // growth in place is the Runtime's business
  InternalScope scope;
  if (size >= kGranuleSize) alignment = std::max<size_t>(alignment, kGranuleSize);
  auto range = heap_runtime->allocate(Bytes(size), Bytes(alignment));
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

bool extentSplit(TpjeExtentHooks*, void*, size_t, size_t, size_t, bool, unsigned) { return false; }
bool extentMerge(TpjeExtentHooks*, void*, size_t, void*, size_t, bool, unsigned) { return false; }

constinit TpjeExtentHooks extent_hooks = {
    extentAlloc, extentDalloc,      extentDestroy, nullptr,     nullptr,
    nullptr,     extentPurgeForced, extentSplit,   extentMerge,
};

// What "experimental.arenas_create_ext" takes: `metadata_use_hooks` false keeps the arena's own
// tables out of managed memory, where they would be cold pages taken under a lock.
struct ArenaConfig {
  TpjeExtentHooks* hooks;
  bool metadata_use_hooks;
};

/// Makes one arena; 0 when jemalloc cannot.
unsigned makeArena() {
  unsigned id = 0;
  size_t id_size = sizeof id;
  ArenaConfig config{&extent_hooks, false};
  if (tpje_mallctl("experimental.arenas_create_ext", &id, &id_size, &config, sizeof config) != 0) {
    TpjeExtentHooks* hooks = &extent_hooks;
    if (tpje_mallctl("arenas.create", &id, &id_size, &hooks, sizeof hooks) != 0) return 0;
  }
  char name[48];
  snprintf(name, sizeof name, "arena.%u.retain_grow_limit", id);
  size_t limit = kGrowLimitBytes;
  // Only a tuning: an arena without the limit works as well.
  static_cast<void>(tpje_mallctl(name, nullptr, nullptr, &limit, sizeof limit));
  return id;
}

unsigned arenaOfSlot(unsigned slot) {
  // Acquire pairs with the release below: the arena is complete when its number is seen.
  unsigned id = arena_ids[slot].load(std::memory_order_acquire);
  if (id != 0) return id;
  MutexLock lock(arena_mutex);
  id = arena_ids[slot].load(std::memory_order_relaxed);
  if (id == 0) {
    id = makeArena();
    arena_ids[slot].store(id, std::memory_order_release);
  }
  return id;
}

unsigned usableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

Status startManagedHeap(Runtime& runtime) {
  if (!reserveHeapMetadata() || !startHugeBlocks(runtime)) {
    return fail(
        ErrorCode::kNoMemory,
        "no address space for the heap's tables; raise the address-space limit (ulimit -v)");
  }
  heap_runtime = &runtime;
  arena_slots = std::min<unsigned>(usableCpus() * kArenasPerCpu, kMaxArenas);
  if (arenaOfSlot(0) == 0) {
    return fail(ErrorCode::kInternal, "the heap cannot start; give the program more memory");
  }
  return {};
}

void bindThreadToArena() {
  TP_CHECK(t_thread_mode == ThreadMode::kInternal);
  // Relaxed: only the spread over arenas depends on it.
  const unsigned slot = next_slot.fetch_add(1, std::memory_order_relaxed) % arena_slots;
  unsigned id = arenaOfSlot(slot);
  if (id == 0) id = arenaOfSlot(0);
  const int error = tpje_mallctl("thread.arena", nullptr, nullptr, &id, sizeof id);
  TP_CHECK_OP(error, ==, 0);
}

void lockArenaTable() TP_NO_THREAD_SAFETY { arena_mutex.lock(); }
void unlockArenaTable() TP_NO_THREAD_SAFETY { arena_mutex.unlock(); }

}  // namespace tidepool
