// SPDX-License-Identifier: Apache-2.0
// One region of a memory server: where it is, connections to it, and channels for its pages. Every
// function may be called by any thread; a client or channel belongs to the one that has it.
#pragma once

#include <memory>

#include "runtime/tier/tier.h"
#include "runtime/transport/client.h"

namespace tidepool {

/// Plain data, which processes may share.
struct RegionAddress {
  Endpoint endpoint;  // in numbers
  uint64_t region = 0;
  wire::Token token;
  Epoch epoch{};
};

/// A connection to a region that is there. While the network is away it is tried again for
/// options.reconnect. Errors: kUnreachable, kTimedOut, kPermission, kStaleEpoch, kLost.
Result<std::unique_ptr<RemoteClient>> attachRegion(const RegionAddress& address,
                                                   const ClientOptions& options);
/// The median round trip of a read of the page at `offset`. Blocks for some hundred of them.
/// Errors: kUnreachable.
Result<Nanoseconds> measurePageRoundTrip(RemoteClient& client, Bytes offset);
/// A channel whose frame 0 is at `start` of the region; `traffic` is borrowed for its life.
/// Errors: kNoMemory.
Result<std::unique_ptr<FetchChannel>> openPageChannel(std::unique_ptr<RemoteClient> client,
                                                      Bytes start, TierTraffic& traffic);

}  // namespace tidepool
