// SPDX-License-Identifier: Apache-2.0
// Checks of batches: a pass without branches, and a second one for the text when something is
// wrong.
#include "allocator/table/batch.h"

#include <algorithm>

namespace tidepool {
namespace {

constexpr size_t kMostIds = 0xffffffffu;  // positions are kept in 32 bits

// Ids that are checked side by side: compilers have them in one register.
constexpr size_t kSideBySide = 8;

/// Has the sign's bit if the id is not a row, of fewer than 2^63.
uint64_t outsideOf(int64_t id, RowNumber rows) {
  const auto number = static_cast<uint64_t>(id);
  return number | (rows - 1 - number);
}

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
  uint64_t outside[kSideBySide] = {};
  size_t i = 0;
  for (; i + kSideBySide <= ids.size(); i += kSideBySide) {
    for (size_t k = 0; k < kSideBySide; ++k) outside[k] |= outsideOf(ids[i + k], rows);
  }
  for (; i < ids.size(); ++i) outside[0] |= outsideOf(ids[i], rows);
  uint64_t any = 0;
  for (const uint64_t some : outside) any |= some;
  if (any >> 63 == 0) return {};
  const auto wrong = std::find_if(ids.begin(), ids.end(),
                                  [rows](int64_t id) { return static_cast<uint64_t>(id) >= rows; });
  return fail(ErrorCode::kInvalidArgument, "table %s: ids[%lld] is %lld, not from 0 to %lld", table,
              asLong(static_cast<size_t>(wrong - ids.begin())), static_cast<long long>(*wrong),
              asLong(rows) - 1);
}

}  // namespace tidepool
