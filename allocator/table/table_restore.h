// SPDX-License-Identifier: Apache-2.0
// Puts the rows of a checkpoint into a table. Holds the table's lock from begin() on, so it begins
// and ends in one thread; put() may run in several, for different rows. Until finish() succeeds the
// table is not usable: a restore that was broken off leaves it to another restore.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "allocator/table/table.h"
#include "runtime/base/mutex.h"

namespace tidepool {

class TableRestore {
 public:
  /// Errors, with nothing changed: kConflict (a checkpoint of it is under way, announced batches
  /// are not finished, or a table with hashed ids has rows already), those of writing changed rows
  /// to their homes.
  static Result<std::unique_ptr<TableRestore>> begin(EmbeddingTable& table);
  ~TableRestore() TP_LOCKS_BY_HAND;
  TableRestore(const TableRestore&) = delete;
  TableRestore& operator=(const TableRestore&) = delete;

  /// From here on the table is not usable until finish(). Comes before the first put().
  void start() TP_LOCKS_BY_HAND;
  /// Rows of another optimizer: what is put has so many bytes a row, of which the weights count.
  /// State begins anew. Comes before the first put().
  void takeWeights(size_t row_bytes) {
    source_bytes_ = row_bytes;
    copied_bytes_ = table_.format_.weightBytes();
  }
  /// `count` rows, of rowBytes each, become those from `first` on. Errors: those of writing to a
  /// fetch tier.
  Status put(RowNumber first, size_t count, const std::byte* bytes) TP_EXCLUDES(turn_, mutex_);
  /// Rows of later calls replace those of earlier ones. No put() is running. Errors: as put().
  Status settle() TP_EXCLUDES(turn_, mutex_);
  using Ids = TableIds::Given;  // of a table with dense ids: of none
  /// All rows are there. `step`: the optimizer's steps so far; `base`: the checkpoint that changes
  /// count from, 0 for none. Errors: as put(), kCorrupt for an id that occurs twice.
  Status finish(const Ids& ids, uint64_t step, CheckpointId base) TP_LOCKS_BY_HAND;

 private:
  explicit TableRestore(EmbeddingTable& table)
      : table_(table),
        source_bytes_(table.format_.rowBytes()),
        copied_bytes_(table.format_.rowBytes()) {}
  Status prepare() TP_REQUIRES(table_.mutex_);
  Status putFar(RowNumber first, size_t count, const std::byte* bytes) TP_EXCLUDES(turn_, mutex_);
  Result<RowChunk*> openChunk() TP_EXCLUDES(turn_, mutex_);
  void fill(RowChunk& chunk, RowNumber first, size_t count, const std::byte* bytes) const;
  void copyRows(std::byte* to, const std::byte* from, size_t count) const;
  Status sendChunk(RowChunk* chunk) TP_EXCLUDES(turn_);
  Status finishFar() TP_EXCLUDES(turn_, mutex_);

  EmbeddingTable& table_;
  size_t source_bytes_, copied_bytes_;  // a row
  bool changing_ = false;
  Mutex turn_;  // the link of a fetch tier is used by one thread at a time
  Mutex mutex_;
  std::vector<RowChunk*> open_ TP_GUARDED_BY(mutex_);  // take more rows; nobody fills them now
};

}  // namespace tidepool
