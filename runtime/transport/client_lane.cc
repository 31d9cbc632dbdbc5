// SPDX-License-Identifier: Apache-2.0
// RemoteClient's way past the server's processor: opening a lane, moving pages and rows through it,
// and going back to the connection when it fails. The connection is the truth: it says what a
// lane's failure means. One owner thread; no allocation after connect().
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/raw_calls.h"
#include "runtime/transport/client_slot.h"
#include "runtime/transport/verbs/verbs_lane.h"

namespace tidepool {
namespace {

/// A server that has to pin a large region first takes its time: a terabyte, at several GB/s.
constexpr Nanoseconds kPinTimeout(300'000'000'000);

/// Says once in a process why pages, or rows, go over TCP: every thread has a client.
void noteTcp(const Endpoint& server, LaneLoad load, const char* reason) {
  static constinit std::atomic<bool> said_of_pages{false}, said_of_rows{false};
  const bool of_rows = load == LaneLoad::kManyShort;
  if ((of_rows ? said_of_rows : said_of_pages).exchange(true, std::memory_order_relaxed)) return;
  logLine("%s of %s:%s go over TCP: %s", of_rows ? "rows" : "pages", server.host, server.port,
          reason);
}

/// Whether a run of the region lies within its first `length` bytes.
bool within(uint64_t offset, uint64_t bytes, uint64_t length) {
  return bytes <= length && offset <= length - bytes;
}

}  // namespace

/// Null: none are wanted, or to be had.
LaneSource* RemoteClient::lanes() const {
  if (options_.transport == Transport::kTcp) return nullptr;
  LaneSource* const source = options_.lanes != nullptr ? options_.lanes : &verbsLanes();
  return source->usable() ? source : nullptr;
}

/// Without a lane, which is no error: at most a line, and a note in the statistics.
Status RemoteClient::useStream(const Endpoint& target, const char* reason, Tell tell) {
  if (tell == Tell::kLine) noteTcp(target, load_, reason);
  counted_.note(reason);
  return {};
}

/// A lane, if it is wanted and both ends can.
Status RemoteClient::tryLane(const Endpoint& target) {
  counted_.take(options_.census, PageWays::kTcp);
  if (options_.transport == Transport::kTcp) return {};
  LaneSource* const source = lanes();
  const Tell plainly = options_.transport == Transport::kVerbs ? Tell::kLine : Tell::kStatistics;
  if (source == nullptr) {
    const Status why = (options_.lanes != nullptr ? *options_.lanes : verbsLanes()).usable();
    const char* const reason = why ? "RDMA came up only just now" : why.error().text();
    return useStream(target, reason, plainly);
  }
  if ((region_.features & wire::kFeatureOneSided) == 0) {
    return useStream(target, "the memory server has no RDMA there", plainly);
  }
  const auto offer = askForLane();
  if (failed()) return fail(failure_, "%s", reason_);
  if (!offer) {
    const bool plain = offer.error().code() == ErrorCode::kUnsupported;
    return useStream(target, offer.error().text(), plain ? plainly : Tell::kLine);
  }
  const auto server = peer();
  if (!server) return tl::unexpected(server.error());
  auto lane = source->connect(*server, *offer, load_, options_.timeout);
  if (!lane) return useStream(target, lane.error().text(), Tell::kLine);
  lane_ = std::move(*lane);
  lane_length_ = offer->length;
  counted_.change(PageWays::kVerbs);
  return watchLane();
}

Result<wire::LaneOffer> RemoteClient::askForLane() {
  std::byte answer[wire::kLaneOfferSize];
  const Nanoseconds usual =
      std::exchange(options_.timeout, std::max(options_.timeout, kPinTimeout));
  FetchCompletion done;
  TP_TRY(queue({.opcode = wire::Opcode::kOpenLane}, {}, {}, answer));
  while (poll({&done, 1}) == 0) sleepUntilReady();
  options_.timeout = usual;
  if (!done.ok()) {
    return fail(done.error, "the memory server gave no RDMA access: %s", errorCodeName(done.error));
  }
  return wire::decodeLaneOffer(answer);
}

/// One descriptor that is readable when the connection or the lane has something to say.
Status RemoteClient::watchLane() {
  UniqueFd events(static_cast<int>(raw::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (!events.valid()) return failErrno(ErrorCode::kIo, "cannot make an epoll descriptor");
  events.keep();
  for (const int fd : {connection_->fd(), lane_->fd(), lane_->endFd()}) {
    if (fd < 0) continue;
    epoll_event wanted = {};
    wanted.events = EPOLLIN;
    if (raw::call(SYS_epoll_ctl, events.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
      return failErrno(ErrorCode::kIo, "cannot wait for an RDMA connection");
    }
  }
  lane_events_ = std::move(events);
  return {};
}

/// While the connection does not take what is to be sent on it, fd() tells when it does.
void RemoteClient::watchStream() {
  const bool full = !inLane() && sent_ != tail_ && mayStart(slot(sent_));
  if (full == stream_full_) return;
  stream_full_ = full;
  epoll_event wanted = {};
  wanted.events = full ? EPOLLIN | EPOLLOUT : EPOLLIN;
  TP_CHECK_OP(
      raw::call(SYS_epoll_ctl, lane_events_.get(), EPOLL_CTL_MOD, connection_->fd(), &wanted), ==,
      0);
}

/// A device refuses what is outside and ends the lane with it, so that is left to the server, which
/// says what was wrong and goes on.
bool RemoteClient::laneHolds(const wire::Request& request,
                             std::span<const std::byte> offsets) const {
  if (lane_ == nullptr) return false;
  switch (request.opcode) {
    case wire::Opcode::kRead:
    case wire::Opcode::kWrite:
      return within(request.offset, request.length, lane_length_);
    case wire::Opcode::kReadRows:
    case wire::Opcode::kWriteRows:
      break;
    default:
      return false;
  }
  if (options_.rows != RowsBy::kLane || request.row_bytes > lane_length_) return false;
  const auto* const rows = reinterpret_cast<const uint64_t*>(offsets.data());
  // No early end: the loop is then one that the compiler makes wide.
  uint64_t most = 0;
  for (uint32_t i = 0; i < request.count; ++i) most = std::max(most, rows[i]);
  return within(most, request.row_bytes, lane_length_);
}

/// What is to be sent next, as far as it lies in one run at both ends. Rows that are adjacent in
/// the region and follow each other in the request are such a run.
LanePiece RemoteClient::nextPiece() const {
  const Slot& next = slot(sent_);
  const bool reads = next.to != nullptr;
  std::byte* const memory =
      reads ? next.to : static_cast<std::byte*>(next.parts[next.row == 0 ? 1 : 2].iov_base);
  LanePiece piece = {
      .direction = reads ? LanePiece::Direction::kRead : LanePiece::Direction::kWrite,
      .offset = next.offset + sent_offset_,
      .memory = memory + sent_offset_};
  const auto left = static_cast<uint32_t>(next.length - sent_offset_);
  piece.bytes = std::min(left, PageLane::kMostPiece);
  if (next.row == 0) return piece;
  const uint32_t most = piece.bytes / next.row;
  const auto* const rows =
      static_cast<const uint64_t*>(next.parts[1].iov_base) + sent_offset_ / next.row;
  uint32_t count = 1;
  while (count < most && rows[count] == rows[count - 1] + next.row) ++count;
  piece.offset = rows[0];
  piece.bytes = count * next.row;
  return piece;
}

/// As many pieces of what is queued for the lane as it has room for. False: none.
Result<bool> RemoteClient::addPieces(PageLane::Ends ends) {
  bool added = false;
  while (sent_ != tail_ && slot(sent_).way == Way::kLane) {
    const LanePiece piece = nextPiece();
    if (!lane_->add(piece)) break;
    added = true;
    sent_offset_ += piece.bytes;
    if (sent_offset_ < slot(sent_).length) continue;
    sent_offset_ = 0;
    ++sent_;
  }
  if (added) {
    TP_TRY(lane_->post(ends));
    lane_quiet_ = false;
    noteProgress();
  }
  return added;
}

/// What has ended in the lane.
size_t RemoteClient::pollLane(std::span<FetchCompletion> out) {
  const auto moved = lane_->reap();
  if (!moved) {
    leaveLane(moved.error());
    (void)flush();
    return 0;
  }
  lane_done_ += *moved;
  size_t count = 0;
  while (count < out.size() && head_ != sent_ && lane_done_ >= slot(head_).length) {
    lane_done_ -= slot(head_).length;
    out[count++] = {slot(head_).tag, ErrorCode{}};
    ++head_;
  }
  if (*moved > 0) {
    noteProgress();
    (void)flush();  // there is room again
  } else if (count == 0 && head_ != tail_ && std::exchange(lane_quiet_, true) && streamSpoke()) {
    // Asked at the second look for nothing, since the first comes before anybody has slept.
    failAll(Error::make(ErrorCode::kUnreachable, "the memory server ended the connection"));
  }
  return count;
}

/// Nothing should come on the connection while no request is under way on it, but its end.
bool RemoteClient::streamSpoke() {
  std::byte unasked;
  const iovec part = {&unasked, 1};
  const auto received = connection_->receive({&part, 1}, Wait::kNever);
  return !received || *received > 0;
}

/// The lane has failed. What had not ended goes over the connection, from the beginning: reads and
/// writes may be repeated. Before that the server ends its side, so that no write of the lane's can
/// come after one of the connection's. If the server has gone, or fenced us off, the connection
/// says so.
void RemoteClient::leaveLane(const Error& error) {
  counted_.change(PageWays::kTcp);
  if (const auto server = peer()) (void)useStream(*server, error.text(), Tell::kLine);
  // Closing it would not do: a child of fork() may have it open, too.
  for (const int fd : {lane_->fd(), lane_->endFd()}) {
    if (fd >= 0) (void)raw::call(SYS_epoll_ctl, lane_events_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
  lane_.reset();
  lane_done_ = 0;
  sent_offset_ = 0;
  way_ = Way::kStream;
  const Nanoseconds now = options_.clock->now();
  for (uint64_t index = head_; index != tail_; ++index) {
    slot(index).way = Way::kStream;
    slot(index).queued = now;
  }
  TP_CHECK_OP(inFlight(), <=, ring_mask_);  // setUp() has left room for one more
  Slot& first = slot(--head_);
  first = {};
  first.own = true;
  first.way = Way::kStream;
  first.queued = now;
  first.parts[0] = {first.header, sizeof first.header};
  first.total = sizeof first.header;
  wire::encode(wire::Request{.opcode = wire::Opcode::kCloseLane, .epoch = region_.epoch},
               first.header);
  sent_ = head_;
}

}  // namespace tidepool
