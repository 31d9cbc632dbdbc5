// SPDX-License-Identifier: Apache-2.0
// RemoteClient: queueing, gathered sending, and completion. Receiving is in client_receive.cc.
// One owner thread; no allocation after connect().
#include "runtime/transport/client.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/transport/client_slot.h"

namespace tidepool {
namespace {

std::span<const std::byte> bytesOf(std::span<const uint64_t> offsets) {
  return std::as_bytes(offsets);
}

}  // namespace

RemoteClient::RemoteClient(std::unique_ptr<Connection> connection, const ClientOptions& options)
    : connection_(std::move(connection)), options_(options) {}

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
  return client;
}

Status RemoteClient::setUp() {
  const uint64_t slots = std::bit_ceil<uint64_t>(std::clamp(options_.max_in_flight, 1u, 1u << 20));
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
  wire::encode(hello, bytes);
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
  if (inFlight() > ring_mask_) {
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
  next.queued = clock_.now();
  wire::encode(request, next.header);
  ++tail_;
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

Status RemoteClient::flush() {
  if (failed()) return fail(ErrorCode::kUnreachable, "%s", reason_);
  while (sent_ != tail_) {
    iovec parts[Connection::kMaxParts];
    const size_t used = gather(parts);
    auto taken = connection_->send({parts, used}, Wait::kNever);
    if (!taken) {
      failAll(taken.error());
      return tl::unexpected(taken.error());
    }
    if (*taken == 0) break;
    advanceSent(*taken);
    noteProgress();
  }
  return {};
}

short RemoteClient::events() const {
  return static_cast<short>(POLLIN | (sent_ != tail_ ? POLLOUT : 0));
}

void RemoteClient::noteProgress() { last_progress_ = clock_.now(); }

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
    out[count++] = {slot(head_).tag, failure_};
    ++head_;
  }
  sent_ = std::max(sent_, head_);
  return count;
}

Nanoseconds RemoteClient::timeToDeadline() const {
  if (head_ == tail_) return options_.timeout;
  if (failed() || answerBuffered()) return Nanoseconds(0);
  const Nanoseconds start = std::max(slot(head_).queued, last_progress_);
  const Nanoseconds now = clock_.now();
  const Nanoseconds deadline = start + options_.timeout;
  return now >= deadline ? Nanoseconds(0) : deadline - now;
}

size_t RemoteClient::poll(std::span<FetchCompletion> out) {
  if (!failed()) (void)flush();  // its failure is reported through the completions
  socket_empty_ = false;
  size_t count = 0;
  while (!failed() && count < out.size() && head_ != tail_) {
    auto taken = takeAnswer(out[count]);
    if (taken && *taken) {
      ++count;
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
  if (!failed() && count == 0 && head_ != tail_ && timeToDeadline() == Nanoseconds(0)) {
    failAll(Error::make(ErrorCode::kTimedOut, "no answer within %llu ms",
                        static_cast<unsigned long long>(options_.timeout.value() / 1'000'000)));
  }
  if (failed()) count += failedCompletions(out.subspan(count));
  return count;
}

FetchCompletion RemoteClient::wait() {
  TP_CHECK(head_ != tail_);
  FetchCompletion done;
  for (;;) {
    // Once all is sent one blocking receive does both, the waiting and the taking.
    if (flush() && sent_ == tail_ && !answerBuffered()) {
      auto filled = fill(Wait::kUntilTimeout);
      if (!filled) failAll(filled.error());
    }
    if (poll({&done, 1}) == 1) return done;
    if (failed() || sent_ == tail_) continue;
    pollfd waiting = {fd(), events(), 0};
    const uint64_t milliseconds = timeToDeadline().value() / 1'000'000 + 1;
    (void)::poll(&waiting, 1, static_cast<int>(std::min<uint64_t>(milliseconds, 1'000'000)));
  }
}

}  // namespace tidepool
