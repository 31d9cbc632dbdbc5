// SPDX-License-Identifier: Apache-2.0
// What a table is to be like, as its maker says.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/kernels/kernels.h"
#include "allocator/rows/row_format.h"
#include "allocator/rows/row_numbers.h"
#include "allocator/table/initializer.h"
#include "allocator/table/row_uses.h"

namespace tidepool {

/// kDense: ids are row numbers. kHashed: any 64-bit ids; a row comes into being at its first use.
enum class IdKind : uint8_t { kDense = 0, kHashed = 1 };

struct TableOptions {
  std::string name = "table";
  RowNumber rows = 0;  // of hashed ids: at most so many
  RowFormat format;
  IdKind ids = IdKind::kDense;
  Initializer initializer;
  OptimizerStep step;                   // rates; its step number is the table's own
  Tracked tracked = Tracked::kNothing;  // of hashed ids, for expire()
  // Of hashed ids: how many times an id must be looked up, by calls that may insert, before it gets
  // a row; until then steps ignore it. 0 and 1: the first use gives it one.
  uint32_t admit_after = 0;
  uint64_t remembered_ids = 0;  // of ids without a row, see SeenIds; 0: a quarter of the rows
  // Of a far tier: local memory for hot rows, what is known of them, and buffers. 0: a share of the
  // budget of its space.
  Bytes dram;
};

}  // namespace tidepool
