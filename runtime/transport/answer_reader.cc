// SPDX-License-Identifier: Apache-2.0
// AnswerReader: a receive guesses that all answers are good ones. Where one is not, what was placed
// after it is put back together.
#include "runtime/transport/answer_reader.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

/// Bytes read ahead of the answer in hand: a batch of small answers in one call.
constexpr size_t kReadAhead = 16 * kKiB;
/// Room for the read-ahead, which is its end, and before that for all that one receive brings, in
/// case it has to be taken back out of place (an answer was an error, so those bytes are the
/// answers after it). Touched only as far as used.
constexpr size_t kReceiveBuffer = wire::kMaxData + wire::kResponseSize + 2 * kReadAhead;

Result<wire::Response> decode(const std::byte* header) {
  return wire::decodeResponse(
      std::span<const std::byte, wire::kResponseSize>(header, wire::kResponseSize));
}

bool goodAnswer(const std::byte* header, const RequestRing::Slot& expected) {
  const auto answer = decode(header);
  return answer && answer->status == 0 && answer->tag == expected.tag &&
         answer->payload == expected.answer;
}

}  // namespace

Status AnswerReader::allocate() {
  auto buffer = Mapping::anonymous(Bytes(roundUp(kReceiveBuffer, kPageSize)));
  if (!buffer) return tl::unexpected(buffer.error());
  buffer_ = std::move(*buffer);
  return {};
}

void AnswerReader::use(Connection& connection) {
  connection_ = &connection;
  ready_ = payload_done_ = 0;
  buffer_begin_ = buffer_end_ = 0;
  in_payload_ = drained_ = false;
}

std::byte* AnswerReader::readAhead() const {
  return buffer_.data() + buffer_.size().value() - kReadAhead;
}

Result<wire::Response> AnswerReader::firstHeader() const {
  return decode(buffer_.data() + buffer_begin_);
}

bool AnswerReader::untaken() const {
  return ready_ > 0 || (!in_payload_ && buffered() >= wire::kResponseSize);
}

bool AnswerReader::complete() const {
  if (ready_ > 0) return true;
  if (in_payload_ || buffered() < wire::kResponseSize) return false;
  const auto header = firstHeader();
  // A malformed header counts as an answer: taking it fails the client at once.
  return !header || buffered() >= wire::kResponseSize + header->payload;
}

/// Reads the header at the front of the buffer. True: the answer has no payload and is complete.
Result<bool> AnswerReader::begin(FetchCompletion& out) {
  const auto header = firstHeader();
  if (!header) return tl::unexpected(header.error());
  const RequestRing::Slot& oldest = requests_.oldest();
  if (requests_.sent() == 0 || header->tag != oldest.tag) {
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
  requests_.end();
  return true;
}

Result<bool> AnswerReader::take(FetchCompletion& out) {
  const RequestRing::Slot& oldest = requests_.oldest();
  if (ready_ > 0) {
    --ready_;
  } else {
    if (!in_payload_) {
      if (buffered() < wire::kResponseSize) return false;
      auto complete = begin(out);
      if (!complete || *complete) return complete;
    }
    TP_CHECK_OP(payload_done_, <, oldest.answer);
    const size_t from_buffer = std::min<size_t>(buffered(), oldest.answer - payload_done_);
    if (from_buffer > 0) {
      memcpy(oldest.to + payload_done_, buffer_.data() + buffer_begin_, from_buffer);
      buffer_begin_ += from_buffer;
      payload_done_ += static_cast<uint32_t>(from_buffer);
    }
    if (payload_done_ < oldest.answer) return false;
    in_payload_ = false;
  }
  out = {oldest.tag, ErrorCode{}};
  requests_.end();
  return true;
}

AnswerReader::Expected AnswerReader::expect() {
  TP_CHECK(!untaken());  // it would be overwritten
  if (buffer_begin_ == buffer_end_) buffer_begin_ = buffer_end_ = 0;
  const bool payload_next =
      in_payload_ || (requests_.sent() != 0 && requests_.oldest().answer != 0);
  return payload_next ? expectInPlace() : expectInBuffer();
}

Result<bool> AnswerReader::took(const Expected& expected, const Result<size_t>& received) {
  if (!received) return tl::unexpected(received.error());
  if (*received == 0) return false;
  drained_ = *received < expected.bytes;
  if (expected.answers > 0) {
    takePlaced(expected, *received);
  } else {
    buffer_end_ += *received;
    TP_CHECK_OP(buffer_end_, <=, buffer_.size().value());
  }
  return true;
}

/// Where the next bytes of the stream belong if all answers are good ones: headers in a row of
/// their own, payloads in place, and read-ahead behind the last one.
AnswerReader::Expected AnswerReader::expectInPlace() {
  Expected expected;
  const auto add = [&expected](std::byte* at, size_t bytes) {
    if (bytes == 0) return;
    expected.parts[expected.used++] = {at, bytes};
    expected.bytes += bytes;
  };
  // The begin of a header may have come with the last receive.
  const size_t begun = buffered();
  TP_CHECK_OP(begun, <, in_payload_ ? 1 : wire::kResponseSize);  // take() has used it up
  memcpy(headers_, buffer_.data() + buffer_begin_, begun);
  const size_t sent = requests_.sent();
  for (size_t i = 0; i < std::min(kMostExpected, sent); ++i) {
    const RequestRing::Slot& next = requests_[i];
    if (i > 0 && expected.bytes + wire::kResponseSize + next.answer > kMostScattered) break;
    const size_t header_done = i > 0 ? 0 : in_payload_ ? wire::kResponseSize : begun;
    const size_t payload_done = i == 0 && in_payload_ ? payload_done_ : 0;
    add(header(i) + header_done, wire::kResponseSize - header_done);
    add(next.to + payload_done, next.answer - payload_done);
    ++expected.answers;
  }
  if (expected.answers == sent) add(readAhead(), kReadAhead);
  return expected;
}

void AnswerReader::takePlaced(const Expected& expected, size_t received) {
  // What of the stream lies in expected's places; the header that had begun counts as well.
  TP_CHECK_OP(received, <=, expected.bytes);
  size_t left = received + buffered();
  buffer_begin_ = buffer_end_ = 0;
  for (size_t i = 0; i < expected.answers; ++i) {
    const RequestRing::Slot& next = requests_[i];
    if (!in_payload_) {
      if (left < wire::kResponseSize) {
        memcpy(buffer_.data(), header(i), left);
        buffer_end_ = left;
        return;
      }
      if (!goodAnswer(header(i), next)) {
        takeBack(expected, i, left);
        return;
      }
      left -= wire::kResponseSize;
      payload_done_ = 0;
    }
    const size_t placed = std::min<size_t>(left, next.answer - payload_done_);
    payload_done_ += static_cast<uint32_t>(placed);
    left -= placed;
    in_payload_ = payload_done_ < next.answer;
    if (in_payload_) return;
    ++ready_;
  }
  TP_CHECK_OP(left, <=, kReadAhead);
  buffer_begin_ = static_cast<size_t>(readAhead() - buffer_.data());
  buffer_end_ = buffer_begin_ + left;
}

/// The guess was wrong: answer `from` (counted from the oldest) is an error, or nonsense. The
/// `left` bytes from its header on are put together in the buffer, where take() judges them.
void AnswerReader::takeBack(const Expected& expected, size_t from, size_t left) {
  TP_CHECK_OP(left, <=, buffer_.size().value() - kReadAhead);
  std::byte* to = buffer_.data();
  const auto take = [&](const std::byte* at, size_t bytes) {
    const size_t taken = std::min(bytes, left);
    if (taken == 0) return;  // there may be no payload, and no place for one
    memcpy(to, at, taken);
    to += taken;
    left -= taken;
  };
  for (size_t i = from; i < expected.answers; ++i) {
    take(header(i), wire::kResponseSize);
    take(requests_[i].to, requests_[i].answer);
  }
  TP_DCHECK_OP(left, <=, kReadAhead);
  take(readAhead(), left);
  buffer_end_ = static_cast<size_t>(to - buffer_.data());
}

AnswerReader::Expected AnswerReader::expectInBuffer() {
  if (buffer_begin_ > 0) {
    memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffered());
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  TP_CHECK_OP(buffer_end_ + kReadAhead, <=, buffer_.size().value());
  Expected expected;
  expected.parts[expected.used++] = {buffer_.data() + buffer_end_, kReadAhead};
  expected.bytes = kReadAhead;
  return expected;
}

}  // namespace tidepool
