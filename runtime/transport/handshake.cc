// SPDX-License-Identifier: Apache-2.0
// The handshake's two questions.
#include "runtime/transport/handshake.h"

#include <algorithm>

#include "runtime/base/clock.h"

namespace tidepool {
namespace {

/// For a server that pins a terabyte, at several GB/s.
constexpr Nanoseconds kPinTimeout(300'000'000'000);

/// The error a refused handshake means to the caller.
tl::unexpected<Error> refusal(const Endpoint& target, const wire::ClientHello& asked,
                              const wire::ServerHello& answer) {
  const auto number = [](auto value) { return static_cast<unsigned long long>(value); };
  const ErrorCode code = wire::errorOf(answer.status);
  switch (code) {
    case ErrorCode::kNoSpace:
      if (asked.size == Bytes()) {
        return fail(
            code,
            "the memory server %s:%s is full: other programs have all of it; a program that "
            "names no SIZE takes all that is free: name one in theirs "
            "(remote:HOST:PORT:SIZE), or give the server a larger --size",
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
    case ErrorCode::kPermission:
      if (asked.kind != wire::HelloKind::kCreate) break;
      return fail(code,
                  "the memory server %s:%s lends by orders of its fabric manager alone: use --far "
                  "fabric, or a server without --control",
                  target.host, target.port);
    case ErrorCode::kStaleEpoch:
      return fail(code, "region %llu at %s:%s has moved on to epoch %llu: epoch %llu is fenced off",
                  number(asked.region), target.host, target.port, number(answer.epoch.value()),
                  number(asked.epoch.value()));
    default:
      break;
  }
  return fail(code, "the memory server %s:%s refused the connection: %s", target.host, target.port,
              errorCodeName(code));
}

}  // namespace

Result<wire::ServerHello> shakeHands(Connection& connection, const Endpoint& target,
                                     const wire::ClientHello& hello, Nanoseconds timeout) {
  std::byte bytes[wire::kHelloSize];
  wire::encode(hello, bytes);
  const Nanoseconds deadline = kMonotonicClock.now() + timeout;
  TP_TRY(sendAll(connection, bytes, deadline));
  if (const Status received = receiveAll(connection, bytes, deadline); !received) {
    return fail(received.error().code(), "no handshake from %s:%s: %s", target.host, target.port,
                received.error().text());
  }
  return judgeAnswer(target, hello, bytes);
}

Result<wire::ServerHello> judgeAnswer(const Endpoint& target, const wire::ClientHello& hello,
                                      std::span<const std::byte, wire::kHelloSize> bytes) {
  auto answer = wire::decodeServerHello(bytes);
  if (answer && answer->status != 0) return refusal(target, hello, *answer);
  return answer;
}

Result<LaneAnswer> askForLane(Connection& connection, Epoch epoch, Nanoseconds timeout) {
  const Nanoseconds deadline = kMonotonicClock.now() + std::max(timeout, kPinTimeout);
  std::byte request[wire::kRequestSize];
  wire::encode(wire::Request{.opcode = wire::Opcode::kOpenLane, .epoch = epoch}, request);
  TP_TRY(sendAll(connection, request, deadline));
  std::byte header[wire::kResponseSize];
  TP_TRY(receiveAll(connection, header, deadline));
  const auto answer = wire::decodeResponse(header);
  if (!answer) return tl::unexpected(answer.error());
  if (answer->status != 0) {
    const ErrorCode code = wire::errorOf(answer->status);
    return LaneAnswer{fail(code, "the memory server gave no RDMA access: %s", errorCodeName(code))};
  }
  if (answer->tag != 0 || answer->payload != wire::kLaneOfferSize) {
    return fail(ErrorCode::kCorrupt, "an answer of %u bytes where an offer of RDMA was asked for",
                answer->payload);
  }
  std::byte offer[wire::kLaneOfferSize];
  TP_TRY(receiveAll(connection, offer, deadline));
  return LaneAnswer{wire::decodeLaneOffer(offer)};
}

}  // namespace tidepool
