// SPDX-License-Identifier: Apache-2.0
// RegionRows: which connection a channel gets.
#include "runtime/tier/region_rows.h"

#include "runtime/tier/remote_row_channel.h"
#include "runtime/tier/row_trial.h"

namespace tidepool {

Result<std::unique_ptr<RemoteClient>> RegionRows::connect(RowsBy by) const {
  const bool lane = by == RowsBy::kLane;
  auto client = attachRegion(address_, {.timeout = patience_.timeout,
                                        .reconnect = patience_.reconnect,
                                        .max_in_flight = RowConnection::kMostRequests,
                                        .transport = lane ? transport_ : Transport::kTcp,
                                        .rows = by});
  if (client) (*client)->recordWrites(table_.recordWrites(where_));
  return client;
}

Result<std::shared_ptr<RowConnection>> RegionRows::share(const RowArea& area) {
  const auto by_server = [this] {
    return by_server_.share([this] { return connect(RowsBy::kServer); });
  };
  std::atomic<uint8_t>& known = known_by_[std::bit_width(area.row.value())];
  const uint8_t found = known.load(std::memory_order_relaxed);
  const bool refused = found == 1 + static_cast<uint8_t>(RowsBy::kServer);
  if (transport_ == Transport::kTcp || refused) return by_server();
  if (transport_ == Transport::kVerbs || found != 0 || by_lane_.anyWithoutLane()) {
    return by_lane_.share([this] { return connect(RowsBy::kLane); });
  }
  auto client = connect(RowsBy::kLane);
  if (!client) return tl::unexpected(client.error());
  if ((*client)->pagesBy() == Transport::kVerbs) {
    const Bytes first = start_ + Bytes(area.frames.first.value() * kPageSize) + area.offset;
    const auto quicker = quickerRows(**client, area, first);
    if (!quicker) return tl::unexpected(quicker.error());
    known.store(1 + static_cast<uint8_t>(*quicker), std::memory_order_relaxed);
    if (*quicker == RowsBy::kServer) {
      client->reset();  // and with it what is registered for the lane
      return by_server();
    }
  }
  return by_lane_.share([&client] { return std::move(client); });
}

Result<std::unique_ptr<RowChannel>> RegionRows::open(const RowArea& area) {
  auto connection = share(area);
  if (!connection) return tl::unexpected(connection.error());
  return std::make_unique<RemoteRowChannel>(std::move(*connection), area, start_, tier_, traffic_);
}

}  // namespace tidepool
