// SPDX-License-Identifier: Apache-2.0
// Receives the answers to the requests that were sent on a connection. They come in the order of
// the requests, so the places of the next payloads are known before their headers arrive: one
// receive brings headers, payloads (in place) and read-ahead. Owned and used by one thread;
// allocates in allocate() only.
#pragma once

#include <cstddef>

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/fetch_channel.h"
#include "runtime/transport/request_ring.h"

namespace tidepool {

class AnswerReader {
  /// Answers that one receive puts in place, and the bytes that these may have in all unless it is
  /// one alone.
  static constexpr size_t kMostExpected = 16;
  static constexpr size_t kMostScattered = kMiB;

 public:
  /// `requests` is borrowed for its life.
  explicit AnswerReader(RequestRing& requests) : requests_(requests) {}
  AnswerReader(const AnswerReader&) = delete;
  AnswerReader& operator=(const AnswerReader&) = delete;
  /// Errors: kNoMemory.
  Status allocate();
  /// Reads answers from `connection`, borrowed, and knows nothing of what came before.
  void use(Connection& connection);

  /// Whether the answer to the oldest request, of which there is one, has come wholly.
  bool complete() const;
  /// Whether take() has something to look at.
  bool untaken() const;
  /// Takes one whole answer from what has been received, and ends its request. False: more bytes
  /// are needed. Errors: kCorrupt.
  Result<bool> take(FetchCompletion& out);
  /// Where the next bytes of the connection belong.
  struct Expected {
    iovec parts[2 * kMostExpected + 1];
    size_t used = 0;
    size_t bytes = 0;
    size_t answers = 0;
  };
  /// A receive in three steps, of which the second does not touch the reader: expect(), not while
  /// untaken(), Connection::receive() into the parts, then took() of what that returned. False:
  /// nothing was there. Errors: those of Connection::receive().
  Expected expect();
  Result<bool> took(const Expected& expected, const Result<size_t>& received);
  /// All three.
  Result<bool> fill(Wait wait) {
    const Expected expected = expect();
    return took(expected, connection_->receive({expected.parts, expected.used}, wait));
  }
  /// True when the last receive brought less than it could have.
  bool drained() const { return drained_; }

 private:
  Result<bool> begin(FetchCompletion& out);
  Expected expectInPlace();
  Expected expectInBuffer();
  void takePlaced(const Expected& expected, size_t received);
  void takeBack(const Expected& expected, size_t from, size_t left);
  Result<wire::Response> firstHeader() const;
  std::byte* header(size_t index) { return headers_ + index * wire::kResponseSize; }
  std::byte* readAhead() const;
  size_t buffered() const { return buffer_end_ - buffer_begin_; }

  Connection* connection_ = nullptr;
  RequestRing& requests_;
  // Good answers that are wholly in place, from the oldest request on. When in_payload_,
  // payload_done_ bytes of the one after these are. Received bytes that are not placed yet are
  // [buffer_begin_, buffer_end_) of buffer_.
  uint32_t ready_ = 0;
  std::byte headers_[kMostExpected * wire::kResponseSize];
  Mapping buffer_;
  size_t buffer_begin_ = 0;
  size_t buffer_end_ = 0;
  bool in_payload_ = false;
  bool drained_ = false;
  uint32_t payload_done_ = 0;
};

}  // namespace tidepool
