// SPDX-License-Identifier: Apache-2.0
// The table, jemalloc's settings, and the order of locks around fork().
#include "allocator/heap/heap_table.h"

#include <pthread.h>

#include <algorithm>
#include <thread>

#include "allocator/arena/heap_metadata.h"
#include "allocator/arena/settings.h"
#include "runtime/runtime.h"

extern "C" {
// jemalloc reads its settings from this variable when it is first called.
__attribute__((used)) const char* tpje_malloc_conf = nullptr;
}

namespace tidepool {
namespace {

// A thread has a cache in every heap that it uses, so each is smaller than that of malloc.
constexpr size_t kLargestCached = 256 * kKiB;
constexpr unsigned kMostSlots = 16;

void settleSettings(const Options& options) {
  const Bytes local = options.dram.value() != 0 ? options.dram : localMemory();
  ThreadCacheShape shape = threadCacheShape(local, std::thread::hardware_concurrency());
  shape.largest_block = std::min(shape.largest_block, kLargestCached);
  shape.slots = std::min(shape.slots, kMostSlots);
  static char text[kArenaSettingsCapacity];
  writeArenaSettings(text, shape, FreeMemory::kIsWanted);
  tpje_malloc_conf = text;
}

}  // namespace

HeapTable& HeapTable::instance() {
  // Never destroyed: threads may end after the process's destructors have run.
  static HeapTable& table = *new HeapTable;
  return table;
}

Status HeapTable::start(const Options& options) {
  if (started_) return {};
  if (!reserveHeapMetadata()) {
    return fail(ErrorCode::kNoMemory,
                "no address space for the tables of heaps; raise the limit (ulimit -v)");
  }
  settleSettings(options);
  // First use: jemalloc starts, and says what it needs around fork().
  size_t epoch = 1, size = sizeof epoch;
  if (tpje_mallctl("epoch", &epoch, &size, &epoch, size) != 0) {
    return fail(ErrorCode::kInternal, "the heap cannot start");
  }
  // After the runtime's own handlers, so that these run before them (pthread_atfork(3)).
  Runtime::registerForkHandlers();
  pthread_atfork([] { instance().lockForFork(); }, [] { instance().unlockInParent(); },
                 [] { instance().unlockInChild(); });
  started_ = true;
  return {};
}

Status HeapTable::prepareGround(const HeapPlan& plan, MemorySource* source) {
  if (!plan.isPlain()) return ground_.managed.cover(source->base(), source->size());
  if (ground_.plain_range != nullptr) return {};
  auto range = PlainRange::create();
  if (!range) return tl::unexpected(range.error());
  TP_TRY(ground_.plain.cover((*range)->base(), (*range)->size()));
  ground_.plain_range = std::move(*range);
  return {};
}

Result<Heap*> HeapTable::create(Context& context, HeapPlan plan) {
  MemorySource* source = nullptr;
  if (!plan.isPlain()) {
    const auto memory = context.memory();
    if (!memory) return tl::unexpected(memory.error());
    source = *memory;
  }
  MutexLock lock(mutex_);
  TP_TRY(start(context.options()));
  TP_TRY(prepareGround(plan, source));
  size_t number = next_;
  for (size_t tried = 0; heaps_[number] != nullptr; ++tried) {
    if (tried == heaps_.size()) {
      return fail(ErrorCode::kNoSpace, "there are %zu heaps: destroy some first",
                  heaps_.size() - 1);
    }
    number = number % (heaps_.size() - 1) + 1;
  }
  if (++generation_ == 0) ++generation_;
  auto heap = Heap::create(context, source, ground_, std::move(plan),
                           {static_cast<HeapNumber>(number), generation_});
  if (!heap) return tl::unexpected(heap.error());
  next_ = number % (heaps_.size() - 1) + 1;
  context.addUser();
  heaps_[number] = std::move(*heap);
  return heaps_[number].get();
}

void HeapTable::destroy(Heap* heap) {
  Context& context = heap->context();
  std::unique_ptr<Heap> gone;
  {
    MutexLock lock(mutex_);
    gone = std::move(heaps_[heap->id().number]);
    // Under the lock: a thread that ends meanwhile must not meet a heap that is half gone.
    gone.reset();
  }
  context.removeUser();
}

HeapStats HeapTable::stats(const Heap& heap) {
  MutexLock lock(mutex_);
  return heap.stats();
}

void HeapTable::trim(Heap& heap) {
  MutexLock lock(mutex_);
  heap.purge();
}

ThreadRecord* HeapTable::recordFor(Heap& heap) {
  MutexLock lock(mutex_);
  return heap.addThread();
}

void HeapTable::leave(ThreadTable* table) {
  MutexLock lock(mutex_);
  for (const auto& heap : heaps_) {
    if (heap == nullptr) continue;
    const ThreadTable::Entry& entry = table->entries[heap->id().number];
    if (entry.generation == heap->id().generation) heap->removeThread(entry.record);
  }
}

void HeapTable::lockInner() TP_LOCKS_MANY {
  for (const auto& heap : heaps_) {
    if (heap != nullptr) heap->extentsMutex().lock();
  }
  if (ground_.plain_range != nullptr) ground_.plain_range->mutex().lock();
  ProcessMemory::instance().mutex().lock();
}

void HeapTable::unlockInner() TP_LOCKS_MANY {
  ProcessMemory::instance().mutex().unlock();
  if (ground_.plain_range != nullptr) ground_.plain_range->mutex().unlock();
  for (const auto& heap : heaps_) {
    if (heap != nullptr) heap->extentsMutex().unlock();
  }
}

void HeapTable::lockForFork() TP_LOCKS_BY_HAND {
  mutex_.lock();
  if (heap_fork_hooks.prepare != nullptr) heap_fork_hooks.prepare();
  lockInner();
}

void HeapTable::unlockInParent() TP_LOCKS_BY_HAND {
  unlockInner();
  if (heap_fork_hooks.parent != nullptr) heap_fork_hooks.parent();
  mutex_.unlock();
}

void HeapTable::unlockInChild() TP_LOCKS_INHERITED {
  unlockInner();
  if (heap_fork_hooks.child != nullptr) heap_fork_hooks.child();
  for (const auto& heap : heaps_) {
    if (heap == nullptr) continue;
    const ThreadTable::Entry none{};
    const ThreadTable::Entry& mine =
        t_thread_table != nullptr ? t_thread_table->entries[heap->id().number] : none;
    heap->keepOnlyThread(mine.generation == heap->id().generation ? mine.record : nullptr);
  }
  mutex_.unlock();
}

}  // namespace tidepool
