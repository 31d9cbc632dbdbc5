// SPDX-License-Identifier: Apache-2.0
// Which way rows of a memory server come sooner: gathered by its processor and sent in one answer,
// or each read by RDMA. That depends on the device, the network and the server's load, so it is
// tried. Not thread-safe: the client belongs to one thread.
#pragma once

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/tier/row_channel.h"
#include "runtime/transport/client.h"

namespace tidepool {

/// Reads some rows of `area`, whose first begins at byte `first` of the region, both ways, and
/// leaves the client with the quicker one. Nothing else is in flight on the client, which has a
/// lane; if it loses that meanwhile the answer is kServer. Takes some twenty requests' time.
/// Errors: kNoMemory, and what a request can end in.
Result<RowsBy> quickerRows(RemoteClient& client, const RowArea& area, Bytes first);

}  // namespace tidepool
