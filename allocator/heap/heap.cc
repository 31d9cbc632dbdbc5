// SPDX-License-Identifier: Apache-2.0
// Blocks: jemalloc's calls with the arena and the cache of the calling thread, and the hooks that
// get it extents. Arenas are never a thread's alone: there are a few, and threads take turns.
#include "allocator/heap/heap.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

#include "allocator/arena/arena_maker.h"

#include "runtime/base/format.h"

namespace tidepool {
namespace {

constexpr Bytes kGrowLimit(16 * kMiB);
// Freed blocks from this size up are given back at once: somebody else can use that much.
constexpr size_t kPurgeAbove = 8 * kMiB;

unsigned usableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

/// jemalloc aligns blocks of up to 8 bytes to 8, and gives nothing for 0.
size_t atLeastAligned(size_t size) { return std::max(size, Heap::kLeastAlignment / 2 + 1); }

}  // namespace

Heap::Hooks Heap::hooksOver(Extents* extents) {
  TpjeExtentHooks functions{};
  functions.alloc = [](TpjeExtentHooks* hooks, void* wanted, size_t size, size_t alignment,
                       bool* zero, bool* commit, unsigned) -> void* {
    if (wanted != nullptr) return nullptr;
    *zero = true;  // fresh memory is zero: a zeroed block need not be touched
    *commit = true;
    return reinterpret_cast<Hooks*>(hooks)->extents->take(Bytes(size), Bytes(alignment));
  };
  functions.dalloc = [](TpjeExtentHooks* hooks, void* address, size_t size, bool, unsigned) {
    return !reinterpret_cast<Hooks*>(hooks)->extents->give(address, Bytes(size));
  };
  // All of a heap is given back when it ends, whatever its arenas knew of.
  functions.destroy = [](TpjeExtentHooks*, void*, size_t, bool, unsigned) {};
  functions.purge_forced = [](TpjeExtentHooks* hooks, void* address, size_t, size_t offset,
                              size_t length, unsigned) {
    return !reinterpret_cast<Hooks*>(hooks)->extents->discard(
        static_cast<std::byte*>(address) + offset, Bytes(length));
  };
  functions.split = allowSplit;
  functions.merge = allowMerge;
  return {functions, extents};
}

Heap::Heap(Context& context, MemorySource* source, HeapGround& ground, HeapPlan plan, HeapId id)
    : context_(context),
      ground_(ground),
      id_(id),
      extents_(context, source, ground, std::move(plan), id.number),
      hooks_(hooksOver(&extents_)),
      arena_count_(std::clamp(usableCpus(), 1u, kMostArenas)) {
  shared_.shared = true;
}

Result<std::unique_ptr<Heap>> Heap::create(Context& context, MemorySource* source,
                                           HeapGround& ground, HeapPlan plan, HeapId id) {
  std::unique_ptr<Heap> heap(new Heap(context, source, ground, std::move(plan), id));
  const unsigned arena = heap->nextArena();
  if (arena == 0) {
    return fail(ErrorCode::kNoMemory, "no arena for another heap: destroy some first");
  }
  heap->shared_.allocate_flags = tpjeArena(arena) | kTpjeNoCache;
  heap->shared_.free_flags = kTpjeNoCache;
  return heap;
}

Heap::~Heap() {
  extents_.close();
  for (const auto& record : records_) {
    if (record->cache == ThreadRecord::kNoCache) continue;
    tpje_mallctl("tcache.destroy", nullptr, nullptr, &record->cache, sizeof record->cache);
  }
  forArenas("arena.%u.destroy");
}

void Heap::forArenas(const char* command) {
  for (const unsigned arena : arenas_) {
    if (arena == 0) continue;
    char name[32];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    formatText(name, sizeof name, command, arena);
#pragma GCC diagnostic pop
    const int error = tpje_mallctl(name, nullptr, nullptr, nullptr, 0);
    TP_CHECK_OP(error, ==, 0);
  }
}

unsigned Heap::nextArena() {
  unsigned& arena = arenas_[next_++ % arena_count_];
  if (arena == 0) arena = makeArena(&hooks_.functions, kGrowLimit);
  // Too many arenas in the process: those that there are must do.
  return arena != 0 ? arena : arenas_[0];
}

ThreadRecord* Heap::addThread() {
  auto record = std::make_unique<ThreadRecord>();
  const unsigned arena = nextArena();
  size_t size = sizeof record->cache;
  if (tpje_mallctl("tcache.create", &record->cache, &size, nullptr, 0) != 0) {
    record->cache = ThreadRecord::kNoCache;
  }
  record->free_flags =
      record->cache == ThreadRecord::kNoCache ? kTpjeNoCache : tpjeCache(record->cache);
  record->allocate_flags = tpjeArena(arena) | record->free_flags;
  records_.push_back(std::move(record));
  return records_.back().get();
}

void Heap::removeThread(ThreadRecord* record) {
  if (record->cache != ThreadRecord::kNoCache) {
    tpje_mallctl("tcache.destroy", nullptr, nullptr, &record->cache, sizeof record->cache);
  }
  shared_.absorb(*record);
  // Nobody may come this way for long: what has been free for a while goes back now.
  forArenas("arena.%u.decay");
  std::erase_if(records_, [&](const auto& one) { return one.get() == record; });
}

void Heap::keepOnlyThread(const ThreadRecord* record) {
  for (const auto& other : records_) {
    // Its thread may have been in the middle of changing it.
    if (other.get() != record) other->cache = ThreadRecord::kNoCache;
  }
}

void* Heap::allocate(size_t size, size_t alignment, Fill fill) {
  if (size > PTRDIFF_MAX) return nullptr;
  ThreadRecord& mine = record();
  int flags = mine.allocate_flags;
  if (alignment > kLeastAlignment) flags |= tpjeAlign(alignment);
  if (fill == Fill::kZero) flags |= kTpjeZero;
  size = atLeastAligned(size);
  void* const block = tpje_mallocx(size, flags);
  if (block != nullptr) mine.count(mine.allocated, tpje_nallocx(size, flags));
  return block;
}

void* Heap::reallocate(void* block, size_t size) {
  if (size > PTRDIFF_MAX) return nullptr;
  ThreadRecord& mine = record();
  const size_t old_size = usableSize(block);
  size = atLeastAligned(size);
  void* const moved = tpje_rallocx(block, size, mine.allocate_flags);
  if (moved == nullptr) return nullptr;
  mine.count(mine.freed, old_size);
  mine.count(mine.allocated, usableSize(moved));
  if (old_size >= kPurgeAbove && moved != block) purge();
  return moved;
}

void Heap::free(void* block) {
  ThreadRecord& mine = record();
  const size_t size = usableSize(block);
  mine.count(mine.freed, size);
  tpje_dallocx(block, mine.free_flags);
  if (size >= kPurgeAbove) purge();
}

void Heap::purge() { forArenas("arena.%u.purge"); }

size_t Heap::usableSize(const void* block) const { return tpje_sallocx(block, 0); }

HeapStats Heap::stats() const {
  ThreadRecord sum;
  sum.shared = true;
  sum.absorb(shared_);
  for (const auto& record : records_) sum.absorb(*record);
  HeapStats stats;
  stats.allocations = sum.allocated.blocks.load(std::memory_order_relaxed);
  stats.frees = sum.freed.blocks.load(std::memory_order_relaxed);
  // Counts of threads that work meanwhile need not fit together.
  const uint64_t in = sum.allocated.bytes.load(std::memory_order_relaxed);
  const uint64_t out = sum.freed.bytes.load(std::memory_order_relaxed);
  stats.allocated = Bytes(in - std::min(in, out));
  stats.reserved = extents_.size();
  stats.residency = extents_.residency();
  return stats;
}

Error Heap::lastError() {
  if (const auto error = Extents::takeError()) return *error;
  return Error::make(ErrorCode::kNoMemory, "no memory for a block of that size");
}

}  // namespace tidepool
