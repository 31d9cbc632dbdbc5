// SPDX-License-Identifier: Apache-2.0
// Row numbers of a table with hashed ids: any 64-bit id gets a row of its own when it is first
// used. Ids are compared in full, so no two share a row. Rows of ids that are erased are given to
// new ones, the one that was freed last first. Exact; not thread-safe (the table's lock).
#pragma once

#include <cstddef>
#include <span>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Ids may be anything, multiples of a power of two for instance: all bits are mixed (the finalizer
/// of MurmurHash3, Appleby 2011). Published images depend on it.
inline uint64_t mixId(uint64_t id) {
  id = (id ^ (id >> 33)) * 0xFF51AFD7ED558CCDull;
  id = (id ^ (id >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return id ^ (id >> 33);
}

class IdMap {
 public:
  static constexpr RowNumber kNone = ~RowNumber{0};

  IdMap() = default;
  /// For at most `rows` ids, below 2^32. Costs less than 16 bytes a row when full, less before.
  /// Errors: kNoMemory.
  static Result<IdMap> create(size_t rows);

  /// kNone for an id without a row.
  RowNumber find(uint64_t id) const;
  void findMany(std::span<const int64_t> ids, RowNumber* rows) const;
  /// The row of a new id: one that is free, else the next number. The id must not be there, nor the
  /// map be full.
  RowNumber insert(uint64_t id);
  /// The row's id has none any more, and the row is free. It must be live().
  void erase(RowNumber row);
  /// Takes the last ids that were inserted out again: `rows` as insert() gave them, of which those
  /// from `end` on, what end() was before, had never been used.
  void undo(std::span<const RowNumber> rows, RowNumber end);
  /// The same as it was elsewhere, row by row from the first on: the id of the next number, which
  /// is free if there is none. Free rows that there are stay free.
  void append(uint64_t id);
  void appendFree();
  /// As if it was just made.
  void clear();

  /// Row numbers that were ever given out are below this: the most ids that there were at a time.
  RowNumber end() const { return end_; }
  /// Whether an id has this row, which is below end().
  bool live(RowNumber row) const { return (free_[row / 64] >> row % 64 & 1) == 0; }
  /// Of a row that is live().
  uint64_t id(RowNumber row) const {
    TP_DCHECK(row < end_ && live(row));
    return idsByRow()[row];
  }
  /// By row; of those that are not live() it means nothing.
  const uint64_t* idsByRow() const { return reinterpret_cast<const uint64_t*>(ids_.data()); }
  /// The ids in the order of their rows, all but the first so many. Returns how many there were and
  /// fitted.
  size_t list(size_t first, std::span<int64_t> out) const;
  /// Bit row % 64 of word row / 64: not live().
  std::span<const uint64_t> freeWords() const { return {free_, (end_ + 63) / 64}; }
  size_t count() const { return count_; }
  size_t capacity() const { return capacity_; }
  /// What a map costs that is full, with a copy of which rows are free, as checkpoints have one.
  static Bytes memoryFor(size_t rows);
  /// Bytes that it costs, all places counted as touched.
  Bytes memory() const;

 private:
  // Open addressing over row numbers; the ids lie in the order of the rows, once.
  uint32_t* places() const { return reinterpret_cast<uint32_t*>(places_.data()); }
  uint64_t* idWords() { return reinterpret_cast<uint64_t*>(ids_.data()); }
  void place(uint64_t id, RowNumber row);
  void setFree(RowNumber row);
  void takeOut(uint64_t id);
  uint64_t home(uint64_t id) const;
  uint64_t next(uint64_t place) const { return place + 1 == place_count_ ? 0 : place + 1; }

  Mapping places_;  // uint32_t: row + 1, or 0
  Mapping ids_;     // uint64_t: the id, or of a free row the next free one
  Mapping free_bits_;
  uint64_t* free_ = nullptr;  // they
  uint64_t place_count_ = 0;
  size_t capacity_ = 0;
  size_t count_ = 0;
  RowNumber end_ = 0;
  RowNumber first_free_ = kNone;
};

}  // namespace tidepool
