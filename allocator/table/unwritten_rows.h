// SPDX-License-Identifier: Apache-2.0
// The rows of a fetch tier that were never written to their homes: nothing of theirs is there, and
// their values are known without asking, for they are what rows begin with. One bit a row. The
// numbers of rows are their ids. One thread at a time may say that rows are written (the table's
// lock), while others ask; who needs an answer that is up to date has seen to the order of the two.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "allocator/rows/row_numbers.h"
#include "allocator/table/first_values.h"
#include "allocator/table/row_bits.h"
#include "runtime/base/result.h"

namespace tidepool {

class UnwrittenRows {
 public:
  /// All of so many rows are. `values` outlives this. Errors: kNoMemory.
  static Result<std::unique_ptr<UnwrittenRows>> create(const FirstValues& values, RowNumber rows);

  /// Whether there are any.
  bool any() const { return left_.load(std::memory_order_relaxed) > 0; }
  bool has(RowNumber row) const { return !written_.test(row); }
  /// Puts the value of one that is among them there.
  void make(RowNumber row, std::byte* to) const { values_.encode(row, to); }
  /// Their homes are about to have these.
  void written(std::span<const RowNumber> rows);

  Bytes memory() const { return written_.memory(); }
  static Bytes memoryFor(RowNumber rows) { return RowBits::memoryFor(rows); }

 private:
  UnwrittenRows(const FirstValues& values, RowNumber rows, RowBits written)
      : values_(values), written_(std::move(written)), left_(rows) {}

  const FirstValues& values_;
  RowBits written_;
  std::atomic<uint64_t> left_;
};

}  // namespace tidepool
