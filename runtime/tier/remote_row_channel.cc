// SPDX-License-Identifier: Apache-2.0
// RemoteRowChannel: checking and placing row numbers.
#include "runtime/tier/remote_row_channel.h"

#include <algorithm>

#include "runtime/base/check.h"

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

RemoteRowChannel::RemoteRowChannel(std::unique_ptr<RemoteClient> client, const RowArea& area,
                                   Bytes first, Tier& tier, TierTraffic& traffic, OffsetRing lists)
    : client_(std::move(client)),
      area_(area),
      base_(first.value() + area.frames.first.value() * kPageSize + area.offset.value()),
      pieces_(piecesOf(area.row)),
      piece_(area.row / pieces_),
      most_rows_(std::min<uint64_t>(wire::kMaxRows / pieces_, wire::kMaxData / area.row.value())),
      tier_(tier),
      traffic_(traffic),
      lists_(std::move(lists)) {}

Result<std::unique_ptr<RowChannel>> RemoteRowChannel::create(std::unique_ptr<RemoteClient> client,
                                                             const RowArea& area, Bytes first,
                                                             Tier& tier, TierTraffic& traffic) {
  TP_TRY(checkRowArea(area, toPages(tier.capacity())));
  auto lists = OffsetRing::create(kMostOffsets, kMostRequests);
  if (!lists) return tl::unexpected(lists.error());
  return std::unique_ptr<RowChannel>(
      new RemoteRowChannel(std::move(client), area, first, tier, traffic, std::move(*lists)));
}

/// Checks every number and puts down where the rows are; keep() then holds on to that.
Result<std::span<const uint64_t>> RemoteRowChannel::place(std::span<const uint64_t> rows) {
  if (rows.empty() || rows.size() > most_rows_) {
    return fail(ErrorCode::kInvalidArgument, "%llu rows: a request is of 1 to %llu",
                number(rows.size()), number(most_rows_));
  }
  if (tier_.notForsaken(area_.frames).count != area_.frames.count) {
    return fail(ErrorCode::kLost, "%s: the frames of these rows were taken away", tier_.name());
  }
  const size_t in_flight = client_->inFlight();
  const auto placed = lists_.place(rows.size() * pieces_, client_->submitted() - in_flight);
  if (placed.empty()) {
    return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                number(in_flight));
  }
  const uint64_t row = area_.row.value();
  uint64_t* const out = placed.data();
  uint64_t most = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    most = std::max(most, rows[i]);
    // A number beyond the area may overflow here: it is refused below.
    for (uint32_t piece = 0; piece < pieces_; ++piece) {
      out[i * pieces_ + piece] = base_ + rows[i] * row + piece * piece_.value();
    }
  }
  if (most >= area_.rows) {
    const auto* const bad = std::find_if(rows.data(), rows.data() + rows.size(),
                                         [this](uint64_t wanted) { return wanted >= area_.rows; });
    return fail(ErrorCode::kInvalidArgument, "row %llu (%llu of %llu asked for) of a table of %llu",
                number(*bad), number(static_cast<uint64_t>(bad - rows.data()) + 1),
                number(rows.size()), number(area_.rows));
  }
  return placed;
}

const char* RemoteRowChannel::reason() const {
  if (failed()) formatText(reason_, sizeof reason_, "%s: %s", tier_.name(), client_->reason());
  return reason_;
}

Status RemoteRowChannel::submitRead(uint64_t tag, std::span<const uint64_t> rows, std::byte* to) {
  const auto placed = place(rows);
  if (!placed) return tl::unexpected(placed.error());
  const size_t bytes = rows.size() * area_.row.value();
  TP_TRY(client_->submitReadRows(tag, *placed, piece_, {to, bytes}));
  lists_.keep(*placed, client_->submitted() - 1);
  traffic_.reads_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

Status RemoteRowChannel::submitWrite(uint64_t tag, std::span<const uint64_t> rows,
                                     const std::byte* from) {
  const auto placed = place(rows);
  if (!placed) return tl::unexpected(placed.error());
  const size_t bytes = rows.size() * area_.row.value();
  TP_TRY(client_->submitWriteRows(tag, *placed, piece_, {from, bytes}));
  lists_.keep(*placed, client_->submitted() - 1);
  traffic_.writes_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

}  // namespace tidepool
