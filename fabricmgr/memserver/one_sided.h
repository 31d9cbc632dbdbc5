// SPDX-License-Identifier: Apache-2.0
// The seam between the memory server and what lets clients read and write regions past its
// process: RDMA verbs (verbs_access.cc), a double in tests. Thread-safe. A client is let in by its
// session, by way of a ticket, and stays until the session ends or its epoch does.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>

#include "fabricmgr/memserver/region_table.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/wire.h"

namespace tidepool::memserver {

/// Beyond the epoch of anybody who was let in.
inline constexpr Epoch kEveryEpoch = Epoch(UINT64_MAX);

class OneSided {
 public:
  virtual ~OneSided() = default;
  /// Lets a client of `epoch` in, for all that the region has now; pins its memory for the first
  /// one. `at` is where the client's connection has come to: RDMA goes to the same address. Errors:
  /// kUnsupported (no device there), kNoMemory (it cannot be pinned), kStaleEpoch (revoked
  /// meanwhile), kInternal. Takes as long as pinning does.
  virtual Result<wire::LaneOffer> open(const std::shared_ptr<Region>& region, Epoch epoch,
                                       const sockaddr_storage& at) = 0;
  /// When it returns, who came with the ticket neither reads nor writes any more, and nobody can
  /// come with it. The memory is pinned no longer soon after the last has gone.
  virtual void close(const wire::Token& ticket) = 0;
  /// When it returns, nobody of an epoch before `epoch` reads or writes the region any more. What
  /// is being pinned for them is not waited for: nobody is let in there, and it is unpinned again.
  virtual void revoke(uint64_t region, Epoch epoch) = 0;
};

/// By RDMA verbs. Listens at the address and port number that the TCP socket `listener` is bound
/// to; one thread of its own answers librdmacm. A region that somebody reaches this way is one
/// memory registration in a protection domain of its own: its key opens nothing else, and nothing
/// with it once it has been deregistered. Errors: kUnsupported (no rdma-core, no device, none at
/// that address), kConflict.
Result<std::unique_ptr<OneSided>> startVerbs(int listener);

}  // namespace tidepool::memserver
