// SPDX-License-Identifier: Apache-2.0
// RemoteClient: queueing, gathered sending, and completion. Receiving is in client_receive.cc,
// what goes past the server's processor in client_lane.cc.
// One owner thread; no allocation after connect().
#include "runtime/transport/client.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/transport/client_slot.h"

namespace tidepool {
namespace {

std::span<const std::byte> bytesOf(std::span<const uint64_t> offsets) {
  return std::as_bytes(offsets);
}

}  // namespace

RemoteClient::RemoteClient(std::unique_ptr<Connection> connection, const ClientOptions& options)
    : connection_(std::move(connection)),
      options_(options),
      load_(options.rows == RowsBy::kLane ? LaneLoad::kManyShort : LaneLoad::kFewLong) {}

RemoteClient::~RemoteClient() = default;

RemoteClient::Slot& RemoteClient::slot(uint64_t index) const {
  return reinterpret_cast<Slot*>(ring_.data())[index & ring_mask_];
}

Result<std::unique_ptr<RemoteClient>> RemoteClient::connect(const Endpoint& target,
                                                            const wire::ClientHello& hello,
                                                            const ClientOptions& options) {
  auto connection = connectTcp(target, options.timeout);
  if (!connection) return tl::unexpected(connection.error());
  std::unique_ptr<RemoteClient> client(new RemoteClient(std::move(*connection), options));
  TP_TRY(client->setUp());
  TP_TRY(client->shakeHands(target, hello));
  TP_TRY(client->tryLane(target));
  return client;
}

Status RemoteClient::setUp() {
  most_in_flight_ = std::bit_ceil<uint64_t>(std::clamp(options_.max_in_flight, 1u, 1u << 20));
  // A client that may lose a lane needs a place for a request of its own then.
  const uint64_t slots = most_in_flight_ * (options_.transport == Transport::kTcp ? 1 : 2);
  auto ring = Mapping::anonymous(Bytes(roundUp(slots * sizeof(Slot), kPageSize)));
  if (!ring) return tl::unexpected(ring.error());
  ring_ = std::move(*ring);
  ring_mask_ = slots - 1;
  auto buffer = Mapping::anonymous(Bytes(roundUp(kReceiveBuffer, kPageSize)));
  if (!buffer) return tl::unexpected(buffer.error());
  buffer_ = std::move(*buffer);
  return {};
}

Status RemoteClient::shakeHands(const Endpoint& target, const wire::ClientHello& hello) {
  std::byte bytes[wire::kHelloSize];
  wire::ClientHello said = hello;
  if (lanes() != nullptr) said.features |= wire::kFeatureOneSided;
  wire::encode(said, bytes);
  for (size_t sent = 0; sent < sizeof bytes;) {
    const iovec part = {bytes + sent, sizeof bytes - sent};
    auto taken = connection_->send({&part, 1}, Wait::kUntilTimeout);
    if (!taken) return tl::unexpected(taken.error());
    sent += *taken;
  }
  for (size_t received = 0; received < sizeof bytes;) {
    const iovec part = {bytes + received, sizeof bytes - received};
    auto given = connection_->receive({&part, 1}, Wait::kUntilTimeout);
    if (!given) {
      return fail(given.error().code(), "no handshake from %s:%s: %s", target.host, target.port,
                  given.error().text());
    }
    received += *given;
  }
  auto answer = wire::decodeServerHello(bytes);
  if (!answer) return tl::unexpected(answer.error());
  if (answer->status != 0) return refusal(target, hello, *answer);
  region_ = *answer;
  return {};
}

Status RemoteClient::queue(wire::Request request, std::span<const std::byte> first,
                           std::span<const std::byte> second, std::span<std::byte> to) {
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  if (inFlight() >= mostInFlight()) {
    return fail(ErrorCode::kNoSpace, "%llu requests are in flight: poll() first",
                static_cast<unsigned long long>(inFlight()));
  }
  request.epoch = region_.epoch;
  Slot& next = slot(tail_);
  next.tag = request.tag;
  next.to = to.data();
  next.answer = static_cast<uint32_t>(to.size());
  next.parts[0] = {next.header, sizeof next.header};
  next.parts[1] = {const_cast<std::byte*>(first.data()), first.size()};
  next.parts[2] = {const_cast<std::byte*>(second.data()), second.size()};
  next.total = static_cast<uint32_t>(sizeof next.header + first.size() + second.size());
  next.way = laneHolds(request, first) ? Way::kLane : Way::kStream;
  next.own = false;
  next.offset = request.offset;
  next.length = request.length;
  next.row = request.row_bytes;
  next.queued = options_.clock->now();
  wire::encode(request, next.header);
  ++tail_;
  ++submitted_;
  return {};
}

Status RemoteClient::submitRead(uint64_t tag, Bytes offset, std::span<std::byte> to) {
  TP_TRY(checkRun(offset, to.size(), region_));
  return queue({.opcode = wire::Opcode::kRead,
                .tag = tag,
                .offset = offset.value(),
                .length = static_cast<uint32_t>(to.size())},
               {}, {}, to);
}

Status RemoteClient::submitWrite(uint64_t tag, Bytes offset, std::span<const std::byte> from) {
  TP_TRY(checkRun(offset, from.size(), region_));
  const auto length = static_cast<uint32_t>(from.size());
  return queue({.opcode = wire::Opcode::kWrite,
                .tag = tag,
                .offset = offset.value(),
                .length = length,
                .payload = length},
               from, {}, {});
}

Status RemoteClient::submitDiscard(uint64_t tag, Bytes offset, Bytes length) {
  if (length.value() > UINT32_MAX || length.value() % kPageSize != 0 || length.value() == 0 ||
      offset.value() % kPageSize != 0) {
    return fail(ErrorCode::kInvalidArgument, "a discard is of whole pages, below 4 GiB");
  }
  return queue({.opcode = wire::Opcode::kDiscard,
                .tag = tag,
                .offset = offset.value(),
                .length = static_cast<uint32_t>(length.value())},
               {}, {}, {});
}

Status RemoteClient::submitPing(uint64_t tag) {
  return queue({.opcode = wire::Opcode::kPing, .tag = tag}, {}, {}, {});
}

Status RemoteClient::submitStat(uint64_t tag, std::span<std::byte, wire::kStatSize> to) {
  return queue({.opcode = wire::Opcode::kStat, .tag = tag}, {}, {}, to);
}

Status RemoteClient::submitReadRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                                    std::span<std::byte> to) {
  TP_TRY(checkRows(offsets.size(), row, to.size()));
  return queue({.opcode = wire::Opcode::kReadRows,
                .tag = tag,
                .length = static_cast<uint32_t>(to.size()),
                .payload = static_cast<uint32_t>(offsets.size_bytes()),
                .count = static_cast<uint32_t>(offsets.size()),
                .row_bytes = static_cast<uint32_t>(row.value())},
               bytesOf(offsets), {}, to);
}

Status RemoteClient::submitWriteRows(uint64_t tag, std::span<const uint64_t> offsets, Bytes row,
                                     std::span<const std::byte> from) {
  TP_TRY(checkRows(offsets.size(), row, from.size()));
  return queue({.opcode = wire::Opcode::kWriteRows,
                .tag = tag,
                .length = static_cast<uint32_t>(from.size()),
                .payload = static_cast<uint32_t>(offsets.size_bytes() + from.size()),
                .count = static_cast<uint32_t>(offsets.size()),
                .row_bytes = static_cast<uint32_t>(row.value())},
               bytesOf(offsets), from, {});
}

/// Lists what is still to be sent, oldest first; returns the number of parts.
size_t RemoteClient::gather(std::span<iovec> parts) const {
  size_t used = 0;
  size_t skip = sent_offset_;
  for (uint64_t index = sent_; index != tail_ && used + 3 <= parts.size(); ++index) {
    if (slot(index).way != Way::kStream) break;
    for (const iovec& part : slot(index).parts) {
      if (skip >= part.iov_len) {
        skip -= part.iov_len;
        continue;
      }
      parts[used++] = {static_cast<std::byte*>(part.iov_base) + skip, part.iov_len - skip};
      skip = 0;
    }
  }
  return used;
}

void RemoteClient::advanceSent(size_t bytes) {
  sent_offset_ += bytes;
  while (sent_ != tail_ && sent_offset_ >= slot(sent_).total) {
    sent_offset_ -= slot(sent_).total;
    ++sent_;
  }
}

/// Whether `next`, the first that has not been sent, may be: its way is that of those before it, or
/// these have all ended.
bool RemoteClient::mayStart(const Slot& next) {
  if (head_ == sent_ && sent_offset_ == 0) way_ = next.way;
  return next.way == way_;
}

/// Sends from the front of what is queued for the connection. False: it takes no more.
Result<bool> RemoteClient::sendParts() {
  iovec parts[Connection::kMaxParts];
  const size_t used = gather(parts);
  auto taken = connection_->send({parts, used}, Wait::kNever);
  if (!taken) return tl::unexpected(taken.error());
  if (*taken == 0) return false;
  advanceSent(*taken);
  noteProgress();
  return true;
}

Status RemoteClient::flush() { return start(PageLane::Ends::kTold); }

/// Sends what may be sent. What goes into the lane: see PageLane::Ends.
Status RemoteClient::start(PageLane::Ends ends) {
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  while (sent_ != tail_ && mayStart(slot(sent_))) {
    const auto moved = inLane() ? addPieces(ends) : sendParts();
    if (!moved && inLane()) {
      leaveLane(moved.error());
      continue;
    }
    if (!moved) {
      failAll(moved.error());
      return tl::unexpected(moved.error());
    }
    if (!*moved) break;
  }
  if (lane_events_.valid()) watchStream();
  return {};
}

short RemoteClient::events() const {
  const bool sending = sent_ != tail_ && !lane_events_.valid();
  return static_cast<short>(POLLIN | (sending ? POLLOUT : 0));
}

void RemoteClient::noteProgress() { last_progress_ = options_.clock->now(); }

/// Each request in flight, and none submitted later, completes with the error once.
void RemoteClient::failAll(const Error& error) {
  if (failed()) return;
  const bool known = error.code() == ErrorCode::kTimedOut || error.code() == ErrorCode::kLost ||
                     error.code() == ErrorCode::kStaleEpoch;
  failure_ = known ? error.code() : ErrorCode::kUnreachable;
  formatText(reason_, sizeof reason_, "%s", error.text());
}

size_t RemoteClient::failedCompletions(std::span<FetchCompletion> out) {
  size_t count = 0;
  while (count < out.size() && head_ != tail_) {
    if (!slot(head_).own) out[count++] = {slot(head_).tag, failure_};
    ++head_;
  }
  sent_ = std::max(sent_, head_);
  return count;
}

Nanoseconds RemoteClient::timeToDeadline() const {
  if (head_ == tail_) return options_.timeout;
  if (failed() || answerBuffered()) return Nanoseconds(0);
  const Nanoseconds start = std::max(slot(head_).queued, last_progress_);
  const Nanoseconds now = options_.clock->now();
  const Nanoseconds deadline = start + options_.timeout;
  return now >= deadline ? Nanoseconds(0) : deadline - now;
}

/// Answers that have come on the connection.
size_t RemoteClient::pollStream(std::span<FetchCompletion> out) {
  socket_empty_ = false;
  size_t count = 0;
  while (!failed() && count < out.size() && head_ != tail_) {
    const bool own = slot(head_).own;
    auto taken = takeAnswer(out[count]);
    if (taken && *taken) {
      count += own ? 0 : 1;
      continue;
    }
    if (taken && socket_empty_) break;
    auto filled = taken ? fill(Wait::kNever) : taken;
    if (!filled) {
      failAll(filled.error());
    } else if (!*filled) {
      break;
    }
  }
  return count;
}

size_t RemoteClient::poll(std::span<FetchCompletion> out) {
  size_t count = 0;
  for (;;) {
    if (failed() || !flush()) break;  // a failure is reported through the completions
    const uint64_t before = head_;
    count += inLane() ? pollLane(out.subspan(count)) : pollStream(out.subspan(count));
    // What goes another way may start now.
    if (head_ == before || head_ != sent_ || sent_ == tail_ || count == out.size()) break;
  }
  if (!failed() && count == 0 && head_ != tail_ && timeToDeadline() == Nanoseconds(0)) {
    const Error late =
        Error::make(ErrorCode::kTimedOut, "no answer within %llu ms",
                    static_cast<unsigned long long>(options_.timeout.value() / 1'000'000));
    if (inLane()) {
      leaveLane(late);
      (void)flush();
    } else {
      failAll(late);
    }
  }
  if (failed()) count += failedCompletions(out.subspan(count));
  return count;
}

void RemoteClient::sleepUntilReady() {
  pollfd waiting = {fd(), events(), 0};
  const uint64_t milliseconds = timeToDeadline().value() / 1'000'000 + 1;
  (void)raw::poll(&waiting, 1, static_cast<int>(std::min<uint64_t>(milliseconds, 1'000'000)));
}

FetchCompletion RemoteClient::wait() {
  TP_CHECK(head_ != tail_);
  FetchCompletion done;
  for (;;) {
    // Once all is sent one blocking receive does both, the waiting and the taking.
    if (start(PageLane::Ends::kLookedFor) && !inLane() && sent_ == tail_ && !answerBuffered()) {
      auto filled = fill(Wait::kUntilTimeout);
      if (!filled) failAll(filled.error());
    }
    // Looked for first: an end that comes soon needs no event.
    if (inLane()) (void)lane_->lookout();
    if (poll({&done, 1}) == 1) return done;
    if (failed() || (!inLane() && sent_ == tail_)) continue;
    sleepUntilReady();
  }
}

}  // namespace tidepool
