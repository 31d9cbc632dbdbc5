// SPDX-License-Identifier: Apache-2.0
// Puts checkpoints back into tables: of any tier, budget and size, under other names, split or
// merged by ranges of rows. Everything that can be told without reading rows is checked before any
// table is changed.
#pragma once

#include <span>
#include <string>

#include "allocator/checkpoint/manifest.h"
#include "allocator/table/table.h"
#include "allocator/table/workers.h"

namespace tidepool {

/// What becomes of the rows of one saved table. A table may occur several times, as the source of
/// some (its rows are split up) or as the target (rows of several are put together); then, and with
/// `first`, `count` or `to`, ids must be dense.
struct RestorePart {
  static constexpr RowNumber kRest = ~RowNumber{0};

  EmbeddingTable* table = nullptr;
  std::string saved = {};   // its name in the checkpoint; empty: as the table is called
  RowNumber first = 0;      // rows first, first + 1, ... of the saved table
  RowNumber count = kRest;  // so many
  RowNumber to = 0;         // become the rows from here on
  // The table may have another optimizer, whose state and steps begin anew; for serving none, which
  // takes the least memory. Changes do not count from the checkpoint.
  bool weights_only = false;
};

/// Restores checkpoint `number` of the directory, 0 for the newest. Rows that no part names stay as
/// they are. Optimizer state comes back and the number of steps; rates are the tables' own. Errors,
/// with nothing changed: kNotFound (no such checkpoint, table or file), kInvalidArgument (format,
/// kind of ids or steps do not fit), kNoSpace (the table has too few rows), kConflict (see
/// TableRestore), kCorrupt, kUnsupported, kIo. Damage that shows later is kCorrupt or kIo as well,
/// and the tables cannot be used until a restore succeeds.
Result<Manifest> restoreTables(const std::string& directory, std::span<const RestorePart> parts,
                               Workers& workers, uint64_t number = 0);

/// All tables from those of their own names.
enum class Restored : uint8_t { kAll, kWeights };
Result<Manifest> restoreTables(const std::string& directory,
                               std::span<EmbeddingTable* const> tables, Workers& workers,
                               uint64_t number = 0, Restored what = Restored::kAll);

}  // namespace tidepool
