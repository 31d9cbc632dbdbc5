// SPDX-License-Identifier: Apache-2.0
// What the C API's look-ups and steps check of their arguments that tables themselves cannot know:
// lengths, NULL, memory that overlaps. All errors are kInvalidArgument. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/include/tidepool/tables.h"
#include "allocator/table/batch.h"
#include "runtime/base/result.h"

namespace tidepool {

struct MemoryRange {
  uintptr_t first = 0, end = 0;
  template <typename T>
  static MemoryRange of(const T* data, size_t count) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return {at, at + count * sizeof(T)};
  }
  bool overlaps(const MemoryRange& other) const { return first < other.end && other.first < end; }
};

/// One table's part of a call. Borrowed.
struct BagPart {
  const char* table = nullptr;  // its name
  Batch batch;
  bool reads(const MemoryRange& written) const;
};

/// `count` things at `data`. Errors: for NULL with a count, and for more than memory can hold.
template <typename T>
Result<std::span<T>> arrayOf(T* data, size_t count, const char* table, const char* what) {
  if (data == nullptr && count > 0) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %s is NULL, and %zu are said to be there",
                table, what, count);
  }
  if (count > SIZE_MAX / 2 / sizeof(T)) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %zu %s are too many", table, count, what);
  }
  return std::span<T>(data, count);
}

/// Errors: unless there are exactly rows x dim floats at `data`.
Status checkFloats(const float* data, size_t floats, size_t rows, const char* table, uint32_t dim,
                   const char* what);
/// Errors: if a call has parts, and one of its arrays is NULL; `what` is the name of `values`.
Status checkCall(size_t count, const tidepool_bags* calls, const void* values, const size_t* floats,
                 const char* what);
/// The i-th of an array of structures as long as the caller knows them.
Result<tidepool_bags> bagsAt(const tidepool_bags* calls, size_t i);
/// Of which `flags` are allowed.
Result<Batch> batchOf(const tidepool_bags& bags, const char* table, uint32_t flags);
/// What was checked must not change while another table's results are written.
Status checkApart(std::span<const BagPart> parts, float* const* outs, const size_t* floats);

}  // namespace tidepool
