// SPDX-License-Identifier: Apache-2.0
// Checks of batches: a pass without branches, and a second one for the text when something is
// wrong.
#include "allocator/table/batch.h"

#include <algorithm>

namespace tidepool {
namespace {

constexpr size_t kMostIds = 0xffffffffu;  // positions are kept in 32 bits

long long asLong(size_t value) { return static_cast<long long>(value); }

}  // namespace

Status checkOffsets(const Batch& batch, const char* table) {
  if (batch.ids.size() > kMostIds) {
    return fail(ErrorCode::kInvalidArgument,
                "table %s: a batch of %lld ids; at most %lld are possible", table,
                asLong(batch.ids.size()), asLong(kMostIds));
  }
  if (batch.offsets.empty() || batch.offsets.front() != 0) {
    return fail(ErrorCode::kInvalidArgument, "table %s: offsets must begin with 0", table);
  }
  for (size_t i = 1; i < batch.offsets.size(); ++i) {
    if (batch.offsets[i] >= batch.offsets[i - 1]) continue;
    return fail(ErrorCode::kInvalidArgument,
                "table %s: offsets[%lld] is %lld, less than the one before it (%lld)", table,
                asLong(i), static_cast<long long>(batch.offsets[i]),
                static_cast<long long>(batch.offsets[i - 1]));
  }
  if (static_cast<uint64_t>(batch.offsets.back()) == batch.ids.size()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "table %s: the last offset is %lld, but there are %lld ids", table,
              static_cast<long long>(batch.offsets.back()), asLong(batch.ids.size()));
}

Status checkDenseIds(std::span<const int64_t> ids, RowNumber rows, const char* table) {
  uint64_t largest = 0;  // a negative id is larger than any row
  for (const int64_t id : ids) largest = std::max(largest, static_cast<uint64_t>(id));
  if (largest < rows) return {};
  const auto wrong = std::find_if(ids.begin(), ids.end(),
                                  [rows](int64_t id) { return static_cast<uint64_t>(id) >= rows; });
  if (wrong == ids.end()) return {};  // no ids at all, in a table without rows
  return fail(ErrorCode::kInvalidArgument, "table %s: ids[%lld] is %lld, not from 0 to %lld", table,
              asLong(static_cast<size_t>(wrong - ids.begin())), static_cast<long long>(*wrong),
              asLong(rows) - 1);
}

}  // namespace tidepool
