// SPDX-License-Identifier: Apache-2.0
// UnwrittenRows.
#include "allocator/table/unwritten_rows.h"

#include "runtime/base/check.h"

namespace tidepool {

Result<std::unique_ptr<UnwrittenRows>> UnwrittenRows::create(const FirstValues& values,
                                                             RowNumber rows) {
  auto written = RowBits::create(rows);
  if (!written) return tl::unexpected(written.error());
  return std::unique_ptr<UnwrittenRows>(new UnwrittenRows(values, rows, std::move(*written)));
}

void UnwrittenRows::written(std::span<const RowNumber> rows) {
  if (!any()) return;
  uint64_t first_time = 0;
  for (const RowNumber row : rows) {
    if (written_.test(row)) continue;  // a row that a restore has twice is in `rows` twice
    written_.set(row);
    ++first_time;
  }
  const uint64_t before = left_.fetch_sub(first_time, std::memory_order_relaxed);
  TP_CHECK_OP(first_time, <=, before);
}

}  // namespace tidepool
