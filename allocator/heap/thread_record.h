// SPDX-License-Identifier: Apache-2.0
// What a thread has in each heap that it uses: a cache of free blocks, an arena, and counts. Found
// with two loads off the thread's own table. A record is its thread's alone, but for the counts,
// which others read; it belongs to the heap.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/heap/owner_table.h"

namespace tidepool {

class Heap;

/// A heap's number, and which of all the heaps that ever had it.
struct HeapId {
  HeapNumber number = 0;
  uint32_t generation = 0;  // never 0
};

struct ThreadRecord {
  static constexpr unsigned kNoCache = ~0u;
  unsigned cache = kNoCache;
  int allocate_flags = 0;  // jemalloc's: arena and cache
  int free_flags = 0;      // cache alone
  bool shared = false;     // several threads count here

  struct Counts {
    std::atomic<uint64_t> blocks{0}, bytes{0};
  };
  Counts allocated, freed;

  // Relaxed: nothing is inferred from one count about another.
  void count(Counts& counts, uint64_t bytes) {
    if (shared) {
      counts.blocks.fetch_add(1, std::memory_order_relaxed);
      counts.bytes.fetch_add(bytes, std::memory_order_relaxed);
      return;
    }
    increase(counts.blocks, 1);
    increase(counts.bytes, bytes);
  }
  /// Adds what another has counted; that one counts no more.
  void absorb(const ThreadRecord& other);

 private:
  static void increase(std::atomic<uint64_t>& count, uint64_t by) {
    count.store(count.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
};

/// One entry a heap number.
struct ThreadTable {
  struct Entry {
    uint32_t generation;
    ThreadRecord* record;
  };
  static constexpr size_t kMostHeaps = 4096;
  Entry entries[kMostHeaps];
};

/// Null: the thread has used no heap yet.
extern thread_local ThreadTable* t_thread_table;

/// The slow path: the thread's first use of the heap. Always gives one, if only the shared record.
ThreadRecord& makeThreadRecord(Heap& heap);

inline ThreadRecord& findThreadRecord(Heap& heap, HeapId id) {
  if (const ThreadTable* const table = t_thread_table) {
    const ThreadTable::Entry& entry = table->entries[id.number];
    if (__builtin_expect(entry.generation == id.generation, 1)) return *entry.record;
  }
  return makeThreadRecord(heap);
}

}  // namespace tidepool
