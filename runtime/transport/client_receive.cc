// SPDX-License-Identifier: Apache-2.0
// RemoteClient's receiving half. Answers come in the order of the requests, so the next payload's
// place is known before its header arrives: one receive brings header, payload (in place) and
// read-ahead. One owner thread; no allocation.
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

/// Receives once, into the best place for what comes next. False: nothing is there.
Result<bool> RemoteClient::fill(Wait wait) {
  if (buffer_begin_ == buffer_end_) buffer_begin_ = buffer_end_ = 0;
  if (in_payload_) return fillPayload(wait);
  if (bufferedBytes() == 0 && slot(head_).answer != 0) return fillExpected(wait);
  return fillBuffer(wait);
}

/// In the middle of a payload: its rest goes in place, what follows it to the buffer.
Result<bool> RemoteClient::fillPayload(Wait wait) {
  TP_CHECK_OP(bufferedBytes(), ==, 0u);  // takeAnswer() has used it up
  const Slot& oldest = slot(head_);
  const size_t rest = oldest.answer - payload_done_;
  const iovec parts[] = {{oldest.to + payload_done_, rest}, {buffer_.data(), kReadAhead}};
  auto given = connection_->receive(parts, wait);
  if (!given) return tl::unexpected(given.error());
  if (*given == 0) return false;
  socket_empty_ = *given < rest + kReadAhead;
  const size_t placed = std::min(*given, rest);
  payload_done_ += static_cast<uint32_t>(placed);
  buffer_end_ = *given - placed;
  noteProgress();
  return true;
}

/// Nothing is buffered and the oldest request expects a payload: guess that it succeeded and
/// receive header, payload in place and read-ahead at once. A wrong guess (the answer is an error)
/// is put right by taking the bytes back out of place: they are the answers that follow.
Result<bool> RemoteClient::fillExpected(Wait wait) {
  const Slot& oldest = slot(head_);
  std::byte* buffer = buffer_.data();
  const iovec parts[] = {{buffer, wire::kResponseSize},
                         {oldest.to, oldest.answer},
                         {buffer + wire::kResponseSize, kReadAhead}};
  auto given = connection_->receive(parts, wait);
  if (!given) return tl::unexpected(given.error());
  if (*given == 0) return false;
  noteProgress();
  socket_empty_ = *given < wire::kResponseSize + oldest.answer + kReadAhead;
  buffer_end_ = std::min(*given, wire::kResponseSize);
  if (*given <= wire::kResponseSize) return true;
  const size_t placed = std::min<size_t>(*given - wire::kResponseSize, oldest.answer);
  const size_t ahead = *given - wire::kResponseSize - placed;
  FetchCompletion ended;
  auto header = wire::decodeResponse(
      std::span<const std::byte, wire::kResponseSize>(buffer, wire::kResponseSize));
  if (!header) return tl::unexpected(header.error());
  if (header->payload == oldest.answer) {
    auto complete = beginAnswer(ended);
    if (!complete) return complete;
    payload_done_ = static_cast<uint32_t>(placed);
    buffer_end_ = buffer_begin_ + ahead;
    return true;
  }
  memmove(buffer + wire::kResponseSize + placed, buffer + wire::kResponseSize, ahead);
  memcpy(buffer + wire::kResponseSize, oldest.to, placed);
  buffer_end_ = wire::kResponseSize + placed + ahead;
  return true;
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
