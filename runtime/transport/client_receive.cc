// SPDX-License-Identifier: Apache-2.0
// RemoteClient's receiving half. Answers come in the order of the requests, so the places of the
// next payloads are known before their headers arrive: one receive brings headers, payloads (in
// place) and read-ahead. One owner thread; no allocation.
#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/transport/client_slot.h"

namespace tidepool {

tl::unexpected<Error> refusal(const Endpoint& target, const wire::ClientHello& asked,
                              const wire::ServerHello& answer) {
  const auto number = [](auto value) { return static_cast<unsigned long long>(value); };
  const ErrorCode code = wire::errorOf(answer.status);
  switch (code) {
    case ErrorCode::kNoSpace:
      if (asked.size == Bytes()) {
        return fail(code,
                    "the memory server %s:%s is full: others have all of it, as whoever names no "
                    "SIZE takes what is free; give theirs one (remote:HOST:PORT:SIZE), or it a "
                    "larger --size",
                    target.host, target.port);
      }
      return fail(code,
                  "the memory server %s:%s is full: %llu bytes wanted, %llu free; ask for less or "
                  "give it a larger --size",
                  target.host, target.port, number(asked.size.value()),
                  number(answer.capacity.value()));
    case ErrorCode::kNotFound:
      return fail(ErrorCode::kLost,
                  "the memory server %s:%s no longer holds region %llu (restarted, or away for too "
                  "long): its pages are lost",
                  target.host, target.port, number(asked.region));
    case ErrorCode::kStaleEpoch:
      return fail(code, "region %llu at %s:%s has moved on to epoch %llu: epoch %llu is fenced off",
                  number(asked.region), target.host, target.port, number(answer.epoch.value()),
                  number(asked.epoch.value()));
    default:
      return fail(code, "the memory server %s:%s refused the connection: %s", target.host,
                  target.port, errorCodeName(code));
  }
}

Status checkRun(Bytes offset, size_t length, const wire::ServerHello& region) {
  if (length == 0 || length % kPageSize != 0 || offset.value() % kPageSize != 0 ||
      length > std::min(region.max_data, wire::kMaxData)) {
    return fail(ErrorCode::kInvalidArgument, "a run is of whole pages, at most %u bytes",
                std::min(region.max_data, wire::kMaxData));
  }
  return {};
}

Status checkRows(size_t rows, Bytes row, size_t bytes) {
  if (rows == 0 || rows > wire::kMaxRows || row.value() < wire::kMinRowBytes ||
      row.value() > wire::kMaxRowBytes || rows * row.value() != bytes || bytes > wire::kMaxData) {
    return fail(ErrorCode::kInvalidArgument,
                "rows are %u to %u bytes, 1 to %u of them, at most %u bytes in all",
                wire::kMinRowBytes, wire::kMaxRowBytes, wire::kMaxRows, wire::kMaxData);
  }
  return {};
}

bool RemoteClient::answerBuffered() const {
  if (head_ == tail_) return false;
  if (inLane()) return head_ != sent_ && lane_done_ >= slot(head_).length;
  if (ready_ > 0) return true;
  if (in_payload_) return payload_done_ + bufferedBytes() >= slot(head_).answer;
  if (bufferedBytes() < wire::kResponseSize) return false;
  auto header = wire::decodeResponse(std::span<const std::byte, wire::kResponseSize>(
      buffer_.data() + buffer_begin_, wire::kResponseSize));
  // A malformed header counts as an answer: taking it fails the client at once.
  return !header || bufferedBytes() >= wire::kResponseSize + header->payload;
}

/// Reads the header at the front of the buffer. True: the answer has no payload and is complete.
Result<bool> RemoteClient::beginAnswer(FetchCompletion& out) {
  auto header = wire::decodeResponse(std::span<const std::byte, wire::kResponseSize>(
      buffer_.data() + buffer_begin_, wire::kResponseSize));
  if (!header) return tl::unexpected(header.error());
  const Slot& oldest = slot(head_);
  if (head_ == sent_ || header->tag != oldest.tag) {
    return fail(ErrorCode::kCorrupt, "an answer to no request in flight");
  }
  if (header->status == 0 && header->payload != oldest.answer) {
    return fail(ErrorCode::kCorrupt, "an answer of %u bytes where %u were asked for",
                header->payload, oldest.answer);
  }
  buffer_begin_ += wire::kResponseSize;
  if (header->payload != 0) {
    in_payload_ = true;
    payload_done_ = 0;
    return false;
  }
  out = {oldest.tag, header->status == 0 ? ErrorCode{} : wire::errorOf(header->status)};
  ++head_;
  return true;
}

/// Takes one whole answer from what has been received. False: more bytes are needed.
Result<bool> RemoteClient::takeAnswer(FetchCompletion& out) {
  if (ready_ > 0) {
    --ready_;
    out = {slot(head_++).tag, ErrorCode{}};
    return true;
  }
  if (!in_payload_) {
    if (bufferedBytes() < wire::kResponseSize) return false;
    auto complete = beginAnswer(out);
    if (!complete || *complete) return complete;
  }
  const Slot& oldest = slot(head_);
  const size_t from_buffer = std::min<size_t>(bufferedBytes(), oldest.answer - payload_done_);
  if (from_buffer > 0) {
    memcpy(oldest.to + payload_done_, buffer_.data() + buffer_begin_, from_buffer);
    buffer_begin_ += from_buffer;
    payload_done_ += static_cast<uint32_t>(from_buffer);
  }
  if (payload_done_ < oldest.answer) return false;
  in_payload_ = false;
  out = {oldest.tag, ErrorCode{}};
  ++head_;
  return true;
}

/// Receives once, into the best place for what comes next. False: nothing is there. True:
/// takeAnswer() has something to look at.
Result<bool> RemoteClient::fill(Wait wait) {
  if (buffer_begin_ == buffer_end_) buffer_begin_ = buffer_end_ = 0;
  // wait() comes here with part of an answer still in the buffer: takeAnswer() has to place that
  // first.
  if (!in_payload_ && bufferedBytes() >= wire::kResponseSize) return true;
  const bool payload_next = in_payload_ || (head_ != sent_ && slot(head_).answer != 0);
  return payload_next ? fillInPlace(wait) : fillBuffer(wait);
}

/// Where the next bytes of the stream belong if all answers are good ones: headers in a row of
/// their own, payloads in place, and read-ahead behind the last one.
RemoteClient::Expected RemoteClient::expect() {
  Expected expected;
  const auto add = [&expected](std::byte* at, size_t bytes) {
    if (bytes == 0) return;
    expected.parts[expected.used++] = {at, bytes};
    expected.bytes += bytes;
  };
  // The begin of a header may have come with the last receive.
  const size_t begun = bufferedBytes();
  memcpy(headers_, buffer_.data() + buffer_begin_, begun);
  for (size_t i = 0; i < kMostExpected && head_ + i != sent_; ++i) {
    const Slot& next = slot(head_ + i);
    if (i > 0 && expected.bytes + wire::kResponseSize + next.answer > kMostScattered) break;
    const size_t header_done = i > 0 ? 0 : in_payload_ ? wire::kResponseSize : begun;
    const size_t payload_done = i == 0 && in_payload_ ? payload_done_ : 0;
    add(headers_ + i * wire::kResponseSize + header_done, wire::kResponseSize - header_done);
    add(next.to + payload_done, next.answer - payload_done);
    ++expected.answers;
  }
  if (head_ + expected.answers == sent_) add(readAhead(), kReadAhead);
  return expected;
}

Result<bool> RemoteClient::fillInPlace(Wait wait) {
  const size_t begun = bufferedBytes();
  TP_CHECK_OP(begun, <, in_payload_ ? 1 : wire::kResponseSize);  // takeAnswer() has used it up
  const Expected expected = expect();
  auto given = connection_->receive({expected.parts, expected.used}, wait);
  if (!given) return tl::unexpected(given.error());
  if (*given == 0) return false;
  noteProgress();
  socket_empty_ = *given < expected.bytes;
  buffer_begin_ = buffer_end_ = 0;
  // What of the stream lies in expected's places; the header that had begun counts as well.
  size_t left = *given + begun;
  for (size_t i = 0; i < expected.answers; ++i) {
    const Slot& next = slot(head_ + i);
    std::byte* const header = headers_ + i * wire::kResponseSize;
    if (!in_payload_) {
      if (left < wire::kResponseSize) {
        memcpy(buffer_.data(), header, left);
        buffer_end_ = left;
        return true;
      }
      if (!goodAnswer(header, next)) {
        takeBack(expected, i, left);
        return true;
      }
      left -= wire::kResponseSize;
      payload_done_ = 0;
    }
    const size_t placed = std::min<size_t>(left, next.answer - payload_done_);
    payload_done_ += static_cast<uint32_t>(placed);
    left -= placed;
    in_payload_ = payload_done_ < next.answer;
    if (in_payload_) return true;
    ++ready_;
  }
  buffer_begin_ = static_cast<size_t>(readAhead() - buffer_.data());
  buffer_end_ = buffer_begin_ + left;
  return true;
}

std::byte* RemoteClient::readAhead() const {
  return buffer_.data() + buffer_.size().value() - kReadAhead;
}

bool RemoteClient::goodAnswer(const std::byte* header, const Slot& expected) {
  const auto answer = wire::decodeResponse(
      std::span<const std::byte, wire::kResponseSize>(header, wire::kResponseSize));
  return answer && answer->status == 0 && answer->tag == expected.tag &&
         answer->payload == expected.answer;
}

/// The guess was wrong: answer `from` (counted from head_) is an error, or nonsense. The `left`
/// bytes from its header on are put together in the buffer, where takeAnswer() judges them.
void RemoteClient::takeBack(const Expected& expected, size_t from, size_t left) {
  std::byte* to = buffer_.data();
  const auto take = [&](const std::byte* at, size_t bytes) {
    const size_t taken = std::min(bytes, left);
    if (taken == 0) return;  // there may be no payload, and no place for one
    memcpy(to, at, taken);
    to += taken;
    left -= taken;
  };
  for (size_t i = from; i < expected.answers; ++i) {
    take(headers_ + i * wire::kResponseSize, wire::kResponseSize);
    take(slot(head_ + i).to, slot(head_ + i).answer);
  }
  take(readAhead(), left);
  buffer_end_ = static_cast<size_t>(to - buffer_.data());
}

Result<bool> RemoteClient::fillBuffer(Wait wait) {
  if (buffer_begin_ > 0) {
    memmove(buffer_.data(), buffer_.data() + buffer_begin_, bufferedBytes());
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  const iovec part = {buffer_.data() + buffer_end_, kReadAhead};
  TP_CHECK_OP(buffer_end_ + kReadAhead, <=, buffer_.size().value());
  auto given = connection_->receive({&part, 1}, wait);
  if (!given) return tl::unexpected(given.error());
  if (*given == 0) return false;
  socket_empty_ = *given < kReadAhead;
  buffer_end_ += *given;
  noteProgress();
  return true;
}

}  // namespace tidepool
