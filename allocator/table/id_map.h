// SPDX-License-Identifier: Apache-2.0
// Row numbers of a table with hashed ids: any 64-bit id gets a row of its own when it is first
// used. Ids are compared in full, so no two share a row. Exact; not thread-safe (the table's lock).
#pragma once

#include <cstddef>
#include <span>

#include "allocator/rows/row_numbers.h"
#include "runtime/base/mapping.h"
#include "runtime/base/result.h"

namespace tidepool {

class IdMap {
 public:
  static constexpr RowNumber kNone = ~RowNumber{0};

  IdMap() = default;
  /// For at most `rows` ids, below 2^32. Costs 16 bytes a row when full, less before. Errors:
  /// kNoMemory.
  static Result<IdMap> create(size_t rows);

  /// kNone for an id without a row.
  RowNumber find(uint64_t id) const;
  void findMany(std::span<const int64_t> ids, RowNumber* rows) const;
  /// The row of a new id: the next number. The id must not be there, nor the map be full.
  RowNumber insert(uint64_t id);
  /// Takes the last `count` ids that were inserted out again.
  void removeLast(size_t count);

  /// Ids in the order of their rows.
  std::span<const uint64_t> ids() const { return {idsByRow(), count_}; }
  size_t count() const { return count_; }
  size_t capacity() const { return capacity_; }
  /// What a map costs that is full.
  static Bytes memoryFor(size_t rows);
  /// Bytes that it costs, all places counted as touched.
  Bytes memory() const;

 private:
  // Open addressing over row numbers; the ids lie in the order of the rows, once.
  uint32_t* places() const { return reinterpret_cast<uint32_t*>(places_.data()); }
  uint64_t* idsByRow() const { return reinterpret_cast<uint64_t*>(ids_.data()); }
  uint64_t home(uint64_t id) const;
  uint64_t next(uint64_t place) const { return place + 1 == place_count_ ? 0 : place + 1; }

  Mapping places_;  // uint32_t: row + 1, or 0
  Mapping ids_;     // uint64_t
  uint64_t place_count_ = 0;
  size_t capacity_ = 0;
  size_t count_ = 0;
};

}  // namespace tidepool
