// SPDX-License-Identifier: Apache-2.0
// Rows on their way from a table to a checkpoint: a piece of memory full of them, a bounded pool of
// such pieces, and the queue of those that are full. Taking from an exhausted pool waits until
// a writer has given one back. Pool and queue are thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/row_uses.h"
#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/base/units.h"

namespace tidepool {

class RowBlockPool;

struct RowBlock {
  size_t table = 0;              // whose rows: its place in the checkpoint
  std::vector<RowNumber> rows;   // in any order
  std::vector<uint64_t> ids;     // of each row its id; none in dense tables
  std::vector<uint64_t> uses;    // of each row its RowUse, packed; none where none is tracked
  bool removed = false;          // these have no ids any more: there are no bytes
  std::byte* bytes = nullptr;    // of each row its rowBytes, one after the other
  RowBlockPool* pool = nullptr;  // where it goes back to

  /// One row more, of which there is room; under the table's lock.
  void add(RowNumber row, const std::byte* of_row, size_t row_bytes, const uint64_t* ids_by_row,
           const RowUses* uses_by_row) {
    memcpy(bytes + rows.size() * row_bytes, of_row, row_bytes);
    rows.push_back(row);
    if (ids_by_row != nullptr) ids.push_back(ids_by_row[row]);
    if (uses_by_row != nullptr) uses.push_back(uses_by_row->get(row).packed());
  }

 private:
  friend class RowBlockPool;
  Mapping memory_;
};

class RowBlockPool {
 public:
  /// At most so many blocks, of `size` each.
  RowBlockPool(size_t most, Bytes size) : size_(size), most_(most) {}
  /// Makes it as large as that. Before its first use.
  void allow(size_t most) { most_ = most; }

  /// An empty block; waits for one if all are in use. Null once the pool is closed, or when the
  /// operating system refuses memory.
  RowBlock* take() TP_EXCLUDES(mutex_);
  void giveBack(RowBlock* block) TP_EXCLUDES(mutex_);
  /// Nobody gets a block any more, nor waits for one.
  void close() TP_EXCLUDES(mutex_);

  /// Rows that fit in a block.
  size_t rowsPerBlock(uint32_t row_bytes) const { return size_.value() / row_bytes; }
  /// How often somebody had to wait, and for how long altogether those did who do not any more.
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }
  Nanoseconds waited() const { return Nanoseconds(waited_.load(std::memory_order_relaxed)); }

 private:
  RowBlock* make() TP_REQUIRES(mutex_);

  const Bytes size_;
  size_t most_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<std::unique_ptr<RowBlock>> blocks_ TP_GUARDED_BY(mutex_);
  std::vector<RowBlock*> free_ TP_GUARDED_BY(mutex_);
  bool closed_ TP_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> waits_{0}, waited_{0};
};

class RowBlockQueue {
 public:
  void push(RowBlock* block) TP_EXCLUDES(mutex_);
  /// Waits for one. Null when no more will come: it was closed, and is empty.
  RowBlock* pop() TP_EXCLUDES(mutex_);
  /// Nothing is pushed after this.
  void close() TP_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar pushed_;
  std::deque<RowBlock*> blocks_ TP_GUARDED_BY(mutex_);
  bool closed_ TP_GUARDED_BY(mutex_) = false;
};

/// Where rows go that are copied before they change.
struct CopyPath {
  RowBlockPool* empty;
  RowBlockQueue* full;
  size_t table;                   // for RowBlock::table
  const uint64_t* ids = nullptr;  // by row, under the table's lock; null in dense tables
  const RowUses* uses = nullptr;  // null if none is tracked
};

}  // namespace tidepool
