// SPDX-License-Identifier: Apache-2.0
// How a client comes to a lane after the handshake: both ends must be able to, the server has to
// offer one, and the lane has to connect. A free function of a connection that nothing else uses
// meanwhile.
#pragma once

#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/page_lane.h"
#include "runtime/transport/wire.h"

namespace tidepool {

/// Why there is none. Odd: both ends said that they can.
struct NoLane {
  Error why;
  bool odd = false;
};

struct ArrangedLane {
  tl::expected<std::unique_ptr<PageLane>, NoLane> lane;
  uint64_t reaches = 0;  // bytes of the region, from its beginning on
};

struct LaneWish {
  const wire::ServerHello& region;
  LaneLoad load;
  Nanoseconds timeout;
};

/// `usable`: what the source said before the handshake. To have no lane is no error. Errors:
/// kUnreachable, kTimedOut, kCorrupt, kIo: the connection is of no more use.
Result<ArrangedLane> arrangeLane(Connection& connection, LaneSource& source, const Status& usable,
                                 const LaneWish& wish);

}  // namespace tidepool
