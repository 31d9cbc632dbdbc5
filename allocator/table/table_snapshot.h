// SPDX-License-Identifier: Apache-2.0
// The rows of a table as they were at one batch boundary, read piece by piece while training goes
// on: the rows of a piece are copied under the table's lock, those of a fetch tier are read over a
// link of their own, and a row that is about to change before its turn is copied by the thread that
// changes it. Each row appears once. Used by one thread; the table must outlive it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/table/row_changes.h"
#include "allocator/table/table.h"

namespace tidepool {

class TableSnapshot {
 public:
  /// Of several tables at the same moment, between two calls on any of them. Rows that change go to
  /// `pool` and `queue`, which outlive the snapshots. kChanged: the rows that changed since the
  /// checkpoint `base`. Errors: kConflict (another checkpoint of a table is under way, or its
  /// changes do not count from `base`), kNoMemory, what broke a table.
  static Result<std::vector<std::unique_ptr<TableSnapshot>>> begin(
      std::span<EmbeddingTable* const> tables, SavedRows which, CheckpointId base,
      RowBlockPool& pool, RowBlockQueue& queue);
  /// Ends it as abandon() does, if nothing has ended it.
  ~TableSnapshot();
  TableSnapshot(const TableSnapshot&) = delete;
  TableSnapshot& operator=(const TableSnapshot&) = delete;

  const TableOptions& options() const { return table_.options(); }
  /// Workers that may copy rows at the same time.
  static size_t workersOf(const EmbeddingTable& table) { return table.missed_.size(); }
  /// Row numbers are below this. How many of them were rows; fewer where ids were removed. And the
  /// optimizer's steps so far.
  RowNumber rows() const { return rows_; }
  RowNumber live() const { return live_; }
  uint64_t step() const { return step_; }

  /// Blocks that next() wants at a time.
  static constexpr size_t kBlocks = 8;
  /// Fills the blocks with rows that were not saved yet. True if there may be more. Errors: what
  /// reading far rows can end in, what broke the table, kNoMemory.
  Result<bool> next(std::span<RowBlock* const> blocks);
  /// After the last rows: fills the block with those that have no id any more, of an incremental
  /// checkpoint those that were removed since the one before. True if there may be more.
  bool nextRemoved(RowBlock& block);
  /// After the last rows: hands on the last ones that were copied elsewhere.
  void finishCopies();
  /// True if some had nowhere to go: the snapshot is not complete.
  bool copiesLost() const { return table_.changes_.copiesLost(); }
  uint64_t rowsCopied() const { return table_.changes_.rowsCopied(); }

  /// How it ended: changes count from it, or from the checkpoint before.
  void commit(CheckpointId id);
  void abandon();

 private:
  class TP_SCOPED_CAPABILITY Hold;
  class Filler;
  TableSnapshot(EmbeddingTable& table, size_t index) : table_(table), index_(index) {}
  void start(RowChanges::Prepared prepared, SavedRows which, RowBlockPool& pool,
             RowBlockQueue& queue) TP_REQUIRES(table_.mutex_);
  Status check(SavedRows which, CheckpointId base) const TP_REQUIRES(table_.mutex_);
  Result<bool> nextInPlace(std::span<RowBlock* const> blocks);
  Result<bool> nextFetched(std::span<RowBlock* const> blocks);
  Status copySlots(Filler& filler, uint64_t& begun, size_t most);
  Status awaitWrites(uint64_t begun);
  Status readFar(Filler& filler);
  Status keepRead(const std::vector<RowChunk*>& chunks, Filler& filler);

  EmbeddingTable& table_;
  const size_t index_;
  bool open_ = false;
  RowNumber rows_ = 0, live_ = 0;
  uint64_t step_ = 0;
  RowNumber cursor_ = 0, removed_cursor_ = 0;
  std::vector<RowNumber> wanted_, far_;
  std::vector<Slot> slots_;
  std::unique_ptr<RowLink> link_;  // of its own, to a fetch tier
};

}  // namespace tidepool
