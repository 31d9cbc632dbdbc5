// SPDX-License-Identifier: Apache-2.0
// Rows of a fetch tier that one call needs and the cache does not have: each is read once, in
// chunks that are under way while more are found. Row addresses are known at once, contents after
// finish(). Not thread-safe (the table's lock).
#pragma once

#include <cstddef>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/row_link.h"

namespace tidepool {

class StagedRows {
 public:
  StagedRows(RowLink& link, Bytes stride) : link_(link), stride_(stride.value()) {}

  /// add() or find() are going to be asked about this row.
  void prefetch(RowNumber row) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[firstEntry(row)], 1);
  }
  /// Rows that are added from now on, until they are written back or forgotten, are going to be
  /// overwritten whole: none is read. Nothing is staged.
  void overwrite() { reads_ = false; }
  /// Where the row will be. Errors: those of RowLink.
  Result<std::byte*> add(RowNumber row);
  /// Where a row that was added is; null if it was dropped.
  std::byte* find(RowNumber row) const;
  /// Sends requests for all that was added.
  Status send();
  /// Chunks that hold all that was added so far.
  size_t chunks() const { return chunks_.size(); }
  /// Blocks until the first so many have come; or all that was added. send() was called.
  Status finish(size_t chunks);
  Status finish() { return finish(chunks_.size()); }
  size_t count() const { return count_; }
  /// Whether the link has memory for so many rows more at a time. Beyond it they have some of their
  /// own: only a bag that is longer than that may be.
  bool roomFor(size_t rows) const {
    const size_t more = (rows + link_.rowsPerChunk() - 1) / link_.rowsPerChunk();
    return chunks_.size() + more <= link_.stagedChunks();
  }
  /// Rows that may be added to none, and have room.
  size_t mostRows() const { return link_.stagedChunks() * link_.rowsPerChunk(); }
  /// The row is somewhere else from now on: it is not written back from here. Others may change
  /// their places. All has come.
  void drop(RowNumber row);
  /// Writes all rows to their homes, as they are now, and forgets them.
  Status writeBack();
  /// Forgets all rows.
  void clear();

 private:
  size_t firstEntry(RowNumber row) const {
    return (row * 0x9E3779B97F4A7C15ull >> 32) & (entries_.size() - 1);
  }
  size_t search(RowNumber row) const;
  Status startRead(RowChunk* chunk) { return reads_ ? link_.startRead(chunk) : Status(); }
  void grow();

  RowLink& link_;
  const uint64_t stride_;
  std::vector<RowChunk*> chunks_;
  bool last_is_open_ = false;  // the last chunk takes more rows
  bool reads_ = true;          // its rows, before they are used
  size_t count_ = 0;
  // Open addressing by row; empty where address is null, and of no row, but not empty, where one
  // was dropped. Its size is a power of two.
  static constexpr RowNumber kDropped = ~RowNumber{0};
  struct Entry {
    RowNumber row;
    std::byte* address;
  };
  std::vector<Entry> entries_;
};

}  // namespace tidepool
