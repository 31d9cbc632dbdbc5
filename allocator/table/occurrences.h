// SPDX-License-Identifier: Apache-2.0
// The look-ups of a batch, ordered by row: for every row that occurs, where. Within a row the order
// of the batch is kept, so that sums of gradients come out the same however the work is shared.
// Buffers are kept from batch to batch. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/rows/row_numbers.h"

namespace tidepool {

class Occurrences {
 public:
  /// Orders a batch; at most 2^32 - 1 look-ups. `rows` are those of its positions, from the first
  /// on, but for the positions of `without`, which are ascending.
  void order(std::span<const RowNumber> rows, std::span<const uint32_t> without = {});

  /// The rows that occur, each once, ascending.
  std::span<const RowNumber> rows() const { return unique_; }
  /// Positions in the batch of the i-th of rows(), ascending.
  std::span<const uint32_t> positions(size_t i) const {
    return std::span(positions_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
  }

 private:
  void sortByRow(std::span<const RowNumber> rows, std::span<const uint32_t> without);

  std::vector<uint32_t> positions_, other_;
  std::vector<RowNumber> keys_, other_keys_;
  std::vector<RowNumber> unique_;
  std::vector<uint32_t> starts_;
};

}  // namespace tidepool
