// SPDX-License-Identifier: Apache-2.0
// One bit for each row of a table, all clear at first. Memory of a page and more is taken as it is
// touched; bits of few rows share a page with others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool {

/// set() and clear() are thread-safe.
class RowBits {
 public:
  RowBits() = default;
  /// Errors: kNoMemory.
  static Result<RowBits> create(RowNumber rows);

  bool valid() const { return few_ != nullptr || memory_.valid(); }
  bool test(RowNumber row) const { return (word(row / 64) >> row % 64 & 1) != 0; }
  void set(RowNumber row) {
    TP_DCHECK_OP(row / 64, <, size_.value() / 8);
    auto& place = words()[row / 64];
    const uint64_t bit = uint64_t{1} << row % 64;
    // Relaxed: bits alone are shared; who reads them has the table's lock.
    if ((place.load(std::memory_order_relaxed) & bit) == 0) {
      place.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  void clear(RowNumber row) {
    TP_DCHECK_OP(row / 64, <, size_.value() / 8);
    words()[row / 64].fetch_and(~(uint64_t{1} << row % 64), std::memory_order_relaxed);
  }
  uint64_t word(uint64_t index) const {
    TP_DCHECK_OP(index, <, size_.value() / 8);
    return words()[index].load(std::memory_order_relaxed);
  }
  /// Sets the bits of the first so many rows.
  void setFirst(RowNumber rows);
  void clearAll();
  /// Sets all bits that are set in the other, which is of the same size.
  void add(const RowBits& other);
  /// Sets these bits, a word for 64 rows; none was set.
  void assign(std::span<const uint64_t> words);
  Bytes memory() const { return size_; }
  /// What one for so many rows costs.
  static Bytes memoryFor(RowNumber rows) {
    const uint64_t bytes = (rows + 63) / 64 * 8;
    return Bytes(bytes < kPageSize ? bytes : roundUp(bytes, kPageSize));
  }

 private:
  std::atomic<uint64_t>* words() const {
    if (few_ != nullptr) return few_.get();
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data());
  }
  Bytes size_;
  std::unique_ptr<std::atomic<uint64_t>[]> few_;  // less than a page of them
  Mapping memory_;                                // more
};

}  // namespace tidepool
