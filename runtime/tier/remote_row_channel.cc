// SPDX-License-Identifier: Apache-2.0
// RemoteRowChannel: checking row numbers.
#include "runtime/tier/remote_row_channel.h"

#include <algorithm>

namespace tidepool {
namespace {

unsigned long long number(uint64_t value) { return value; }

/// The least power of two that cuts a row into pieces that the protocol carries. Rows of more than
/// one piece are of whole 16 bytes and at most 64 KiB, so it divides them.
uint32_t piecesOf(Bytes row) {
  uint32_t pieces = 1;
  while (row.value() > uint64_t{pieces} * wire::kMaxRowBytes) pieces *= 2;
  return pieces;
}

}  // namespace

Status checkRowArea(const RowArea& area, PageCount frames) {
  const uint64_t row = area.row.value();
  if (row < RowArea::kLeastRow.value() || row > RowArea::kMostRow.value() ||
      (row > wire::kMaxRowBytes && row % RowArea::kAlignment.value() != 0)) {
    return fail(ErrorCode::kInvalidArgument,
                "rows of %llu bytes: they may be of %llu to %llu, above %u in steps of %llu",
                number(row), number(RowArea::kLeastRow.value()), number(RowArea::kMostRow.value()),
                wire::kMaxRowBytes, number(RowArea::kAlignment.value()));
  }
  const FrameRun run = area.frames;
  if (run.count > frames || run.first.value() > (frames - run.count).value()) {
    return fail(ErrorCode::kInvalidArgument, "frames %llu to %llu of a tier that has %llu",
                number(run.first.value()), number(run.first.value() + run.count.value()),
                number(frames.value()));
  }
  const uint64_t size = toBytes(run.count).value();
  const uint64_t offset = area.offset.value();
  // Divided rather than multiplied: any number of rows may come in here.
  if (area.rows == 0 || offset > size || area.rows > (size - offset) / row) {
    return fail(ErrorCode::kInvalidArgument,
                "%llu rows of %llu bytes from byte %llu on do not fit into %llu bytes",
                number(area.rows), number(row), number(offset), number(size));
  }
  return {};
}

RemoteRowChannel::RemoteRowChannel(std::shared_ptr<RowConnection> connection, const RowArea& area,
                                   Bytes first, Tier& tier, TierTraffic& traffic)
    : connection_(std::move(connection)),
      area_(area),
      base_(first.value() + area.frames.first.value() * kPageSize + area.offset.value()),
      pieces_(piecesOf(area.row)),
      most_rows_(std::min<uint64_t>(wire::kMaxRows / pieces_, wire::kMaxData / area.row.value())),
      tier_(tier),
      traffic_(traffic) {}

Status checkRows(const RowArea& area, size_t most_rows, std::span<const uint64_t> rows) {
  if (rows.empty() || rows.size() > most_rows) {
    return fail(ErrorCode::kInvalidArgument, "%llu rows: a request is of 1 to %llu",
                number(rows.size()), number(most_rows));
  }
  // No early end: the loop is then one that the compiler makes wide.
  uint64_t most = 0;
  for (const uint64_t row : rows) most = std::max(most, row);
  if (most < area.rows) return {};
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [&](uint64_t row) { return row >= area.rows; });
  return fail(ErrorCode::kInvalidArgument, "row %llu (%llu of %llu asked for) of a table of %llu",
              number(*bad), number(static_cast<uint64_t>(bad - rows.begin()) + 1),
              number(rows.size()), number(area.rows));
}

Status RemoteRowChannel::check(std::span<const uint64_t> rows) const {
  TP_TRY(checkRows(area_, most_rows_, rows));
  if (tier_.notForsaken(area_.frames).count != area_.frames.count) {
    return fail(ErrorCode::kLost, "%s: the frames of these rows were taken away", tier_.name());
  }
  return {};
}

const char* RemoteRowChannel::reason() const {
  connection_->writeReason(tier_.name(), reason_);
  return reason_;
}

Status RemoteRowChannel::submit(RowRequest::Direction direction, uint64_t tag,
                                std::span<const uint64_t> rows, std::byte* memory) {
  TP_TRY(check(rows));
  return connection_->submit(port_, {.direction = direction,
                                     .tag = tag,
                                     .rows = rows,
                                     .memory = memory,
                                     .base = base_,
                                     .row = area_.row,
                                     .pieces = pieces_});
}

Status RemoteRowChannel::submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) {
  TP_TRY(submit(RowRequest::Direction::kRead, tag, rows, to));
  traffic_.reads_bytes.fetch_add(rows.size() * area_.row.value(), std::memory_order_relaxed);
  return {};
}

Status RemoteRowChannel::submitWrite(uint64_t tag, std::span<const uint64_t> rows,
                                     const std::byte* from) {
  // A write only reads it; one function serves both directions.
  TP_TRY(submit(RowRequest::Direction::kWrite, tag, rows, const_cast<std::byte*>(from)));
  traffic_.writes_bytes.fetch_add(rows.size() * area_.row.value(), std::memory_order_relaxed);
  return {};
}

}  // namespace tidepool
