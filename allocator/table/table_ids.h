// SPDX-License-Identifier: Apache-2.0
// The ids of a table, and which rows they have. Dense ids are the numbers of the rows. Hashed ids
// get a row when they are first used, or once they were seen often enough, and give it back when
// they are removed or expire; when each row was used is kept with it. What rows hold is not known
// here. Under the table's lock; used() may run in several workers at once, for different rows.
#pragma once

#include <span>
#include <vector>

#include "allocator/table/batch.h"
#include "allocator/table/id_map.h"
#include "allocator/table/row_bits.h"
#include "allocator/table/row_uses.h"
#include "allocator/table/seen_ids.h"
#include "allocator/table/table_options.h"
#include "runtime/base/result.h"

namespace tidepool {

class TableIds {
 public:
  /// `options`, which were checked, outlive it.
  explicit TableIds(const TableOptions& options) : options_(options) {}
  /// Errors: kInvalidArgument for what only hashed ids can have, or nobody.
  static Status check(const TableOptions& options);
  /// Errors: kNoMemory.
  Status setUp();

  /// Local memory that ids of the options take, what is kept of their rows counted in.
  static Bytes memoryFor(const TableOptions& options);
  /// What they take now.
  Bytes memory() const;

  bool hashed() const { return options_.ids == IdKind::kHashed; }
  /// Rows that exist.
  RowNumber count() const { return hashed() ? map_.count() : options_.rows; }
  /// Every row's number is below it.
  RowNumber end() const { return hashed() ? map_.end() : options_.rows; }
  bool live(RowNumber row) const { return !hashed() || (row < map_.end() && map_.live(row)); }
  /// Of a row that is live().
  uint64_t id(RowNumber row) const { return hashed() ? map_.id(row) : row; }
  /// Of hashed ids, by row; null for dense ones.
  const uint64_t* byRow() const { return hashed() ? map_.idsByRow() : nullptr; }
  /// Bit row % 64 of word row / 64: not live(). Empty for dense ids.
  std::span<const uint64_t> freeWords() const;
  /// Null if none are tracked.
  const RowUses* uses() const { return uses_.tracked() == Tracked::kNothing ? nullptr : &uses_; }
  /// As EmbeddingTable::knownIds().
  size_t list(size_t first, std::span<int64_t> out) const { return map_.list(first, out); }

  // The rows of ids, those that have one side by side; `without` gets the places of the others. The
  // result is borrowed: of dense ids it is the caller's memory, of hashed ones it is there until
  // the next call. Errors: kNoSpace, with nothing changed.

  /// Of a look-up. Ids without a row get one if the batch says so, and the table admits them.
  Result<std::span<const RowNumber>> forLookUp(const Batch& batch, std::vector<uint32_t>& without);
  /// Of a step, or an announcement: where ids have to be admitted, none is by this.
  Result<std::span<const RowNumber>> forStep(std::span<const int64_t> ids,
                                             std::vector<uint32_t>& without);
  /// All get one.
  Result<std::span<const RowNumber>> forWriting(std::span<const int64_t> ids);
  /// Rows that the last of these three has given out. They begin as the table says.
  std::span<const RowNumber> made() const { return made_; }
  void born(RowNumber row, uint64_t step) { uses_.born(row, step); }

  /// Of ids that all have one. Errors: kNotFound, naming one that does not.
  Status existing(std::span<const int64_t> ids, std::vector<RowNumber>& rows) const;

  /// The row changed.
  void used(RowNumber row, uint64_t step) { uses_.used(row, step); }

  /// Errors: kUnsupported for dense ids; `what` is who asks.
  static Status checkHashed(const TableOptions& options, const char* what);
  /// Errors: the same; kInvalidArgument if nothing is asked for, or what is not tracked.
  static Status checkExpiry(const TableOptions& options, const Expiry& expiry);
  /// The rows of those ids that have one, ascending, each once.
  std::vector<RowNumber> present(std::span<const int64_t> ids) const;
  /// The live rows from `first` to `end` that the expiry takes at that step.
  void expired(const Expiry& expiry, uint64_t step, RowNumber first, RowNumber end,
               std::vector<RowNumber>& rows) const;
  /// The row, which is live, is nobody's any more.
  void erase(RowNumber row) { map_.erase(row); }

  /// By row: the id and, unless it is empty, what is known of its uses, as far as the row is among
  /// `live`.
  struct Given {
    std::span<const uint64_t> ids;
    const RowBits& live;
    std::span<const RowUse> uses;
  };
  /// No id has a row, or was ever seen.
  void clear();
  /// After clear(). Errors: kCorrupt for an id that occurs twice.
  Status assign(const Given& given);

 private:
  bool admits() const { return options_.admit_after > 1; }
  std::span<const RowNumber> known(std::span<const int64_t> ids, std::vector<uint32_t>& without);
  Result<std::span<const RowNumber>> admitted(std::span<const int64_t> ids,
                                              std::vector<uint32_t>& without);
  bool findAll(std::span<const int64_t> ids);
  Status insertNew(std::span<const int64_t> ids, std::span<RowNumber> rows);

  const TableOptions& options_;
  IdMap map_;
  RowUses uses_;
  SeenIds seen_;  // of ids that have to be admitted
  std::vector<RowNumber> found_, made_;
};

}  // namespace tidepool
