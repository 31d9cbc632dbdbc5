// SPDX-License-Identifier: Apache-2.0
// ClientLane: pieces, and the epoll descriptor.
#include "runtime/transport/client_lane.h"

#include <sys/epoll.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

/// Whether a run of the region lies within its first `length` bytes.
bool within(uint64_t offset, uint64_t bytes, uint64_t length) {
  return bytes <= length && offset <= length - bytes;
}

}  // namespace

Status ClientLane::open(std::unique_ptr<PageLane> lane, uint64_t length, int connection) {
  TP_CHECK(lane_ == nullptr && !events_.valid());
  UniqueFd events(static_cast<int>(raw::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (!events.valid()) return failErrno(ErrorCode::kIo, "cannot make an epoll descriptor");
  events.keep();
  for (const int fd : {connection, lane->fd(), lane->endFd()}) {
    if (fd < 0) continue;
    epoll_event wanted = {};
    wanted.events = EPOLLIN;
    if (raw::call(SYS_epoll_ctl, events.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
      return failErrno(ErrorCode::kIo, "cannot wait for an RDMA connection");
    }
  }
  events_ = std::move(events);
  lane_ = std::move(lane);
  length_ = length;
  return {};
}

void ClientLane::watchSending(int connection, bool full) {
  if (full == watching_) return;
  watching_ = full;
  epoll_event wanted = {};
  wanted.events = full ? EPOLLIN | EPOLLOUT : EPOLLIN;
  TP_CHECK_OP(raw::call(SYS_epoll_ctl, events_.get(), EPOLL_CTL_MOD, connection, &wanted), ==, 0);
}

/// A device refuses what is outside and ends the lane with it, so that is left to the server, which
/// says what was wrong and goes on.
bool ClientLane::carries(const wire::Request& request, std::span<const std::byte> offsets,
                         RowsBy rows) const {
  if (lane_ == nullptr) return false;
  switch (request.opcode) {
    case wire::Opcode::kRead:
    case wire::Opcode::kWrite:
      return within(request.offset, request.length, length_);
    case wire::Opcode::kReadRows:
    case wire::Opcode::kWriteRows:
      break;
    default:
      return false;
  }
  if (rows != RowsBy::kLane || request.row_bytes > length_) return false;
  const auto* const all = reinterpret_cast<const uint64_t*>(offsets.data());
  TP_DCHECK_OP(offsets.size(), ==, request.count * sizeof(uint64_t));
  // No early end: the loop is then one that the compiler makes wide.
  uint64_t most = 0;
  for (uint32_t i = 0; i < request.count; ++i) most = std::max(most, all[i]);
  return within(most, request.row_bytes, length_);
}

/// The next piece to send, as far as it lies in one run at both ends. Rows that are adjacent in
/// the region and follow each other in the request are such a run.
LanePiece ClientLane::nextPiece() const {
  const RequestRing::Slot& next = requests_.next();
  const size_t sent = requests_.sentOfNext();
  const bool reads = next.to != nullptr;
  std::byte* const memory =
      reads ? next.to : static_cast<std::byte*>(next.parts[next.row == 0 ? 1 : 2].iov_base);
  LanePiece piece = {
      .direction = reads ? LanePiece::Direction::kRead : LanePiece::Direction::kWrite,
      .offset = next.offset + sent,
      .memory = memory + sent};
  piece.bytes = std::min(static_cast<uint32_t>(next.length - sent), PageLane::kMostPiece);
  if (next.row == 0) return piece;
  // Rows are sent whole.
  TP_CHECK(sent % next.row == 0 && next.row <= piece.bytes);
  const uint32_t most = piece.bytes / next.row;
  const auto* const rows = static_cast<const uint64_t*>(next.parts[1].iov_base) + sent / next.row;
  uint32_t count = 1;
  while (count < most && rows[count] == rows[count - 1] + next.row) ++count;
  piece.offset = rows[0];
  piece.bytes = count * next.row;
  return piece;
}

Result<bool> ClientLane::send(PageLane::Ends ends) {
  bool added = false;
  while (!requests_.allSent() && requests_.next().way == RequestRing::Way::kLane) {
    const LanePiece piece = nextPiece();
    if (!lane_->add(piece)) break;
    added = true;
    requests_.advance(piece.bytes);
  }
  if (added) TP_TRY(lane_->post(ends));
  return added;
}

Result<ClientLane::Ended> ClientLane::take(std::span<FetchCompletion> out) {
  const auto moved = lane_->reap();
  if (!moved) return tl::unexpected(moved.error());
  done_ += *moved;
  TP_CHECK(*moved == 0 || !requests_.empty());
  size_t count = 0;
  while (count < out.size() && complete()) {
    done_ -= requests_.oldest().length;
    out[count++] = {requests_.oldest().tag, ErrorCode{}};
    requests_.end();
  }
  return Ended{count, *moved > 0};
}

void ClientLane::close() {
  TP_CHECK(lane_ != nullptr);
  // Closing it would not do: a child of fork() may have it open, too.
  for (const int fd : {lane_->fd(), lane_->endFd()}) {
    if (fd >= 0) (void)raw::call(SYS_epoll_ctl, events_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
  lane_.reset();
  done_ = 0;
}

}  // namespace tidepool
