// SPDX-License-Identifier: Apache-2.0
// Channels for the rows of one region of a memory server, the connections that they share, and
// which way rows go there. Thread-safe; every channel is for one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <memory>

#include "runtime/tier/frame_table.h"
#include "runtime/tier/remote_region.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/row_connections.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class RegionRows {
 public:
  /// `start`: the byte of the region that the tier's frame 0 begins at. The table, in which writes
  /// are noted with `where` (FrameTable::recordWrites()), the tier, which names itself in errors,
  /// and the traffic are borrowed for the life of the channels.
  RegionRows(const RegionAddress& address, Bytes start, const Patience& patience,
             Transport transport, FrameTable& table, Tier& tier, TierTraffic& traffic,
             uint32_t where = 0)
      : address_(address),
        start_(start),
        patience_(patience),
        transport_(transport),
        table_(table),
        where_(where),
        tier_(tier),
        traffic_(traffic) {}

  /// A channel for the rows of `area`, which lies within the tier. Any number may be open; beyond
  /// some they share connections, and those that share one end with it when it fails. Where the
  /// transport is left open and there is RDMA, the first channel for rows of about that size reads
  /// some of them both ways, and all take the way that was quicker. Errors: kUnreachable,
  /// kTimedOut, kPermission, kStaleEpoch, kLost.
  Result<std::unique_ptr<RowChannel>> open(const RowArea& area);
  /// In a child of fork(): all connections are the parent's.
  void forgetInChild() TP_LOCKS_INHERITED {
    by_server_.forget();
    by_lane_.forget();
  }

 private:
  Result<std::unique_ptr<RemoteClient>> connect(RowsBy by) const;
  Result<std::shared_ptr<RowConnection>> share(const RowArea& area);

  const RegionAddress address_;
  const Bytes start_;
  const Patience patience_;
  const Transport transport_;
  FrameTable& table_;
  const uint32_t where_;
  Tier& tier_;
  TierTraffic& traffic_;
  // By the bits of a row's size: 0: not known yet, else 1 + RowsBy. Relaxed: each holds by itself.
  std::array<std::atomic<uint8_t>, std::bit_width(RowArea::kMostRow.value()) + 1> known_by_{};
  RowConnections by_server_, by_lane_;
};

}  // namespace tidepool
