// SPDX-License-Identifier: Apache-2.0
// What a client and a memory server say to each other before the first request. Both wait. Free
// functions of a connection that nothing else uses meanwhile.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// Asks for a region. Errors: kUnreachable, kTimedOut, kCorrupt, and what the server refuses with.
Result<wire::ServerHello> shakeHands(Connection& connection, const Endpoint& target,
                                     const wire::ClientHello& hello, Nanoseconds timeout);

/// The answer to `hello`, received. Errors: kCorrupt, and what the server refuses with.
Result<wire::ServerHello> judgeAnswer(const Endpoint& target, const wire::ClientHello& hello,
                                      std::span<const std::byte, wire::kHelloSize> answer);

/// The server's answer to OPEN_LANE.
struct LaneAnswer {
  /// Errors: what the server refuses with, kUnsupported by one that has no RDMA.
  Result<wire::LaneOffer> offer;
};
/// Asks for a lane. A server that has to pin a large region first takes its time, which is allowed
/// for. Errors: kUnreachable, kTimedOut, kCorrupt: the connection is of no more use.
Result<LaneAnswer> askForLane(Connection& connection, Epoch epoch, Nanoseconds timeout);

}  // namespace tidepool
