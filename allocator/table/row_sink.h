// SPDX-License-Identifier: Apache-2.0
// Who takes rows that are to be published: EmbeddingTable::takeUnpublished().
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/result.h"

namespace tidepool {

class RowSink {
 public:
  virtual ~RowSink() = default;
  /// A row of the index-th table as it is. Of dense ids `id` is the row. `bytes` is borrowed.
  virtual Status take(size_t index, RowNumber row, uint64_t id, const std::byte* bytes) = 0;
  /// No id has that row.
  virtual Status drop(size_t index, RowNumber row) = 0;
  /// Those were all. From here on they count as published.
  virtual void complete() = 0;
};

}  // namespace tidepool
