// SPDX-License-Identifier: Apache-2.0
// Internals shared by the two halves of RemoteClient: the ring's slot, the receive buffer's size,
// and checks of arguments. Included by client*.cc only.
#pragma once

#include "runtime/transport/client.h"

namespace tidepool {

/// One request in flight. `parts` are its bytes on the wire; empty parts are skipped.
struct RemoteClient::Slot {
  uint64_t tag;
  std::byte* to;    // where the answer's payload goes; null: none
  uint32_t answer;  // bytes of payload that a good answer carries
  uint32_t total;   // bytes on the wire
  Way way;
  bool own;         // the client's: its end is nobody else's business
  uint64_t offset;  // what a lane needs to know
  uint32_t length;
  uint32_t row;  // bytes of one; 0: pages
  Nanoseconds queued;
  iovec parts[3];
  std::byte header[wire::kRequestSize];
};

/// What a receive is asked for.
struct RemoteClient::Expected {
  iovec parts[2 * kMostExpected + 1];
  size_t used = 0;
  size_t bytes = 0;
  size_t answers = 0;
};

/// Bytes read ahead of the answer in hand: a batch of small answers in one call.
inline constexpr size_t kReadAhead = 16 * kKiB;
/// Room for the read-ahead, which is its end, and before that for all that one receive brings, in
/// case it has to be taken back out of place (an answer was an error, so those bytes are the
/// answers after it). Touched only as far as used.
inline constexpr size_t kReceiveBuffer = wire::kMaxData + wire::kResponseSize + 2 * kReadAhead;

/// The error a refused handshake means to the caller.
tl::unexpected<Error> refusal(const Endpoint& target, const wire::ClientHello& asked,
                              const wire::ServerHello& answer);
Status checkRun(Bytes offset, size_t length, const wire::ServerHello& region);
Status checkRows(size_t rows, Bytes row, size_t bytes);

}  // namespace tidepool
