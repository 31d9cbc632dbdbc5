// SPDX-License-Identifier: Apache-2.0
// Which rows of a table changed since its last checkpoint, and, while one is being taken, which it
// still needs as they were: those are copied before they change. Costs one test a row until the
// first checkpoint, one bit a row from then on. Under the table's lock; beforeChange() may run in
// several workers at once, for different rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/row_bits.h"
#include "allocator/table/row_block.h"
#include "runtime/base/result.h"

namespace tidepool {

/// What a checkpoint is to hold.
enum class SavedRows : uint8_t { kAll = 0, kChanged = 1 };

/// Names one checkpoint; 0 is none.
using CheckpointId = uint64_t;

class RowChanges {
 public:
  /// The row's bytes, which are still the old ones, are about to change.
  void beforeChange(RowNumber row, const std::byte* bytes, size_t worker) {
    if (unpublished_.valid()) unpublished_.set(row);
    if (!changed_.valid()) return;
    if (row < limit_) keepOld(row, bytes, worker);
    changed_.set(row);
  }
  /// A row came into being, or its id was removed.
  void created(RowNumber row) {
    if (unpublished_.valid()) unpublished_.set(row);
    if (changed_.valid()) changed_.set(row);
  }

  /// What the changes count from.
  CheckpointId base() const { return base_; }
  bool saving() const { return saving_; }

  /// From now on, changes count from a checkpoint that holds the table as it is. `base` may be 0.
  Status restart(RowNumber capacity, CheckpointId base);
  /// A checkpoint of the rows below `limit` begins. Memory it needs is taken before prepare()
  /// returns, so that begin() can be called for several tables and cannot fail. Errors: kNoMemory.
  /// `free`: bits of the rows below the limit that no id has, a word for 64; empty: all have one.
  struct Prepared {
    RowBits changed, saved, free;
  };
  static Result<Prepared> prepare(RowNumber capacity);
  void begin(Prepared prepared, SavedRows which, RowNumber limit, uint32_t row_bytes,
             size_t workers, CopyPath path, std::span<const uint64_t> free = {});
  /// The rows from `from` on that the checkpoint still needs, at most `most` of them, ascending,
  /// are added to `rows`. Returns where to go on; the limit when there are no more.
  RowNumber pending(RowNumber from, size_t most, std::vector<RowNumber>& rows) const;
  bool isPending(RowNumber row) const {
    return row < limit_ && !saved_.test(row) && !(free_.valid() && free_.test(row)) &&
           (which_ == SavedRows::kAll || asked_.test(row));
  }
  /// Rows from `from` on that have changed since the checkpoint before and had no id any more when
  /// this one began; as pending(). Needs no lock.
  RowNumber removed(RowNumber from, size_t most, std::vector<RowNumber>& rows) const;
  void saved(RowNumber row) { saved_.set(row); }
  /// No row is needed any more: hands on the copies that do not fill a block.
  void finishCopies();
  /// Copies had nowhere to go.
  bool copiesLost() const { return copies_lost_.load(std::memory_order_relaxed); }
  uint64_t rowsCopied() const { return copied_.load(std::memory_order_relaxed); }

  /// The checkpoint is complete, and changes count from it.
  void commit(CheckpointId id);
  /// There is no such checkpoint: changes count from the one before.
  void abandon();
  /// From now on the rows that have changed since the table was last published are known, apart
  /// from checkpoints: all of them at first, and after a restore. Errors: kNoMemory.
  Status startPublishing(RowNumber capacity);
  void stopPublishing() { unpublished_ = RowBits(); }
  bool publishes() const { return unpublished_.valid(); }
  /// Those of the `capacity` rows, as pending().
  RowNumber unpublished(RowNumber capacity, RowNumber from, size_t most,
                        std::vector<RowNumber>& rows) const;
  void published() { unpublished_.clearAll(); }

  /// The most that memory() is, of a table that has been saved or restored: three bits a row. Ids
  /// that were removed cost a fourth while it is saved, which IdMap has put aside.
  static Bytes mostMemory(RowNumber rows) { return RowBits::memoryFor(rows) * 3; }
  /// Who publishes the table counts what that takes.
  Bytes memory() const {
    return changed_.memory() + asked_.memory() + saved_.memory() + free_.memory();
  }

 private:
  void keepOld(RowNumber row, const std::byte* bytes, size_t worker);
  void end();

  RowBits changed_, unpublished_;
  CheckpointId base_ = 0;
  // While a checkpoint is taken.
  bool saving_ = false;
  SavedRows which_ = SavedRows::kAll;
  RowNumber limit_ = 0;          // 0 when nothing has to be kept
  RowNumber removed_below_ = 0;  // the limit, also when nothing has to be kept any more
  RowBits asked_, saved_;        // what changed before it began; what it has by now
  RowBits free_;                 // had no id when it began; of no table without such rows
  uint32_t row_bytes_ = 0;
  size_t block_rows_ = 0;
  CopyPath path_{};
  std::vector<RowBlock*> copies_;  // by worker; null for none
  std::atomic<bool> copies_lost_{false};
  std::atomic<uint64_t> copied_{0};
};

}  // namespace tidepool
