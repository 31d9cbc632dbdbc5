// SPDX-License-Identifier: Apache-2.0
// Batches of look-ups as callers give them, and the checks that come before anything is done.
// Borrowed memory; values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/kernels/kernels.h"
#include "allocator/rows/row_numbers.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Bag b is made of the rows ids[offsets[b]] .. ids[offsets[b + 1] - 1].
struct Batch {
  std::span<const int64_t> ids;
  std::span<const int64_t> offsets;  // one more than there are bags; the first is 0, the last the
                                     // number of ids
  const float* weights = nullptr;    // one an id; null: all 1
  Pooling pooling = Pooling::kSum;

  size_t bags() const { return offsets.size() - 1; }
};

/// Errors: kInvalidArgument, naming the first offset that is wrong.
Status checkOffsets(const Batch& batch, const char* table);
/// Errors: kInvalidArgument, naming the first id that is not from 0 to rows - 1.
Status checkDenseIds(std::span<const int64_t> ids, RowNumber rows, const char* table);

}  // namespace tidepool
