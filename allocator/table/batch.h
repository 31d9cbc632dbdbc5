// SPDX-License-Identifier: Apache-2.0
// Batches of look-ups as callers give them, and the checks that come before anything is done.
// Borrowed memory; values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/kernels/kernels.h"
#include "allocator/rows/row_numbers.h"
#include "runtime/base/result.h"

namespace tidepool {

/// What becomes of ids of a hashed table that have no row.
enum class Absent : uint8_t {
  kInsert,   // they get one
  kInitial,  // they give what their row would begin with; none comes into being
};

/// Bag b is made of the rows ids[offsets[b]] .. ids[offsets[b + 1] - 1].
struct Batch {
  std::span<const int64_t> ids;
  std::span<const int64_t> offsets;  // one more than there are bags; the first is 0, the last the
                                     // number of ids
  const float* weights = nullptr;    // one an id; null: all 1
  Pooling pooling = Pooling::kSum;
  Absent absent = Absent::kInsert;  // of a look-up; a step inserts

  size_t bags() const { return offsets.size() - 1; }
};

/// The rows of a call's look-ups. Borrowed.
struct KnownRows {
  std::span<const RowNumber> rows;    // of the look-ups that have one, in their order
  std::span<const uint32_t> without;  // the look-ups that have none, in order

  /// Those of look-ups [first, end).
  std::span<const RowNumber> of(size_t first, size_t end) const {
    const size_t before = withoutBelow(first);
    return rows.subspan(first - before, end - first - (withoutBelow(end) - before));
  }
  /// How many before the look-up have none.
  size_t withoutBelow(size_t lookup) const {
    const auto at = std::lower_bound(without.begin(), without.end(), lookup);
    return static_cast<size_t>(at - without.begin());
  }
};

/// Errors: kInvalidArgument, naming the first offset that is wrong.
Status checkOffsets(const Batch& batch, const char* table);
/// Errors: kInvalidArgument, naming the first id that is not from 0 to rows - 1.
Status checkDenseIds(std::span<const int64_t> ids, RowNumber rows, const char* table);

}  // namespace tidepool
