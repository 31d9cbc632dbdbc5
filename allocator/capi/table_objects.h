// SPDX-License-Identifier: Apache-2.0
// Handles of tables, and how the C API's functions read what callers give them: structures of which
// the caller may know less, arrays with their lengths. All failures are Errors that report() takes.
#pragma once

#include <vector>

#include "allocator/capi/objects.h"
#include "allocator/capi/process_tables.h"
#include "allocator/include/tidepool/tables.h"

struct tidepool_table : tidepool::HandleSlot<tidepool::OpenTable> {};

namespace tidepool {

using TableSlots = HandleSlots<OpenTable, 4096>;
inline constinit TableSlots table_slots;

/// A handle's table, for the process that made it. Errors: kInvalidArgument for NULL,
/// kUnsupported in a child of fork(). Null: it was closed, or never was one.
Result<OpenTable*> tableOf(const tidepool_table* handle);
/// The same; null: it has been reported why.
OpenTable* tableOrReport(const tidepool_table* handle);

/// A copy as long as we know it of a structure that begins with struct_size; the rest is as in
/// `known`. Errors: kInvalidArgument if the size cannot be.
template <typename Struct>
Result<Struct> readStruct(const Struct* given, Struct known, const char* what) {
  if (given == nullptr) return known;
  const size_t size = sizeToFill(*given);
  if (size == 0) {
    return fail(ErrorCode::kInvalidArgument, "%s: struct_size is %zu: begin with the _INIT macro",
                what, given->struct_size);
  }
  memcpy(&known, given, size);
  return known;
}

/// `count` things at `data`. Errors: kInvalidArgument for NULL with a count, and for more than
/// memory can hold.
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

/// Errors: kInvalidArgument unless there are exactly rows x dim floats at `data`.
template <typename Float>
Status checkFloats(Float* data, size_t floats, size_t rows, const OpenTable& open,
                   const char* what) {
  const TableOptions& options = open.table->options();
  size_t wanted;
  if (__builtin_mul_overflow(rows, size_t{options.format.dim}, &wanted) || wanted != floats) {
    return fail(ErrorCode::kInvalidArgument, "table %s: %s has %zu floats; %zu rows of %u are %s",
                options.name.c_str(), what, floats, rows, options.format.dim,
                wanted > floats ? "more" : "fewer");
  }
  const auto array = arrayOf(data, floats, options.name.c_str(), what);
  return array ? Status() : Status(tl::unexpected(array.error()));
}

}  // namespace tidepool
