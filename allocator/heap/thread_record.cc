// SPDX-License-Identifier: Apache-2.0
// A thread's table of records: made at its first use of a heap, given up when it ends.
#include "allocator/heap/thread_record.h"

#include <pthread.h>

#include "allocator/heap/heap_table.h"

namespace tidepool {

constinit thread_local ThreadTable* t_thread_table = nullptr;

namespace {

// Set once the thread's table was given up: destructors that run later do without.
constinit thread_local bool t_ending = false;

void endThread(void* value) {
  auto* const table = static_cast<ThreadTable*>(value);
  t_thread_table = nullptr;
  t_ending = true;
  HeapTable::instance().leave(table);
  Mapping freed(table, Bytes(sizeof(ThreadTable)));
}

/// Its value in a thread is the thread's table. False: the process has no key left.
bool setThreadKey(ThreadTable* table) {
  static pthread_key_t key;
  static const bool have_key = pthread_key_create(&key, endThread) == 0;
  return have_key && pthread_setspecific(key, table) == 0;
}

ThreadTable* makeThreadTable() {
  auto memory = Mapping::anonymous(Bytes(sizeof(ThreadTable)));
  if (!memory) return nullptr;
  auto* const table = reinterpret_cast<ThreadTable*>(memory->data());
  // Without it nobody would say when the thread ends.
  if (!setThreadKey(table)) return nullptr;
  memory->abandon();
  return table;
}

void addTo(ThreadRecord::Counts& sum, const ThreadRecord::Counts& counts) {
  const auto relaxed = std::memory_order_relaxed;
  sum.blocks.fetch_add(counts.blocks.load(relaxed), relaxed);
  sum.bytes.fetch_add(counts.bytes.load(relaxed), relaxed);
}

}  // namespace

void ThreadRecord::absorb(const ThreadRecord& other) {
  addTo(allocated, other.allocated);
  addTo(freed, other.freed);
}

ThreadRecord& makeThreadRecord(Heap& heap) {
  if (t_thread_table == nullptr && !t_ending) t_thread_table = makeThreadTable();
  if (t_thread_table == nullptr) return heap.sharedRecord();
  ThreadRecord* const record = HeapTable::instance().recordFor(heap);
  t_thread_table->entries[heap.id().number] = {heap.id().generation, record};
  return *record;
}

}  // namespace tidepool
