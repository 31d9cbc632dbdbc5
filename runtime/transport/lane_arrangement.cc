// SPDX-License-Identifier: Apache-2.0
// arrangeLane: one question after the other, and what each refusal means.
#include "runtime/transport/lane_arrangement.h"

#include <utility>

#include "runtime/transport/handshake.h"

namespace tidepool {
namespace {

ArrangedLane without(const Error& why, bool odd) { return {tl::unexpected(NoLane{why, odd}), 0}; }

}  // namespace

Result<ArrangedLane> arrangeLane(Connection& connection, LaneSource& source, const Status& usable,
                                 const LaneWish& wish) {
  if (!usable) return without(usable.error(), false);
  if ((wish.region.features & wire::kFeatureOneSided) == 0) {
    return without(Error::make(ErrorCode::kUnsupported, "the memory server has no RDMA there"),
                   false);
  }
  const auto answer = askForLane(connection, wish.region.epoch, wish.timeout);
  if (!answer) return tl::unexpected(answer.error());
  const auto& offer = answer->offer;
  if (!offer) return without(offer.error(), offer.error().code() != ErrorCode::kUnsupported);
  const auto server = peerOf(connection.fd());
  if (!server) return tl::unexpected(server.error());
  auto lane = source.connect(*server, *offer, wish.load, wish.timeout);
  if (!lane) return without(lane.error(), true);
  return ArrangedLane{std::move(*lane), offer->length};
}

}  // namespace tidepool
