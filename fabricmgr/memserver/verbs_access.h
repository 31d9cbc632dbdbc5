// SPDX-License-Identifier: Apache-2.0
// One-sided access to regions by RDMA verbs. A region that somebody reaches this way is one memory
// registration in a protection domain of its own: its key opens nothing else, and nothing with it
// once it has been deregistered. Thread-safe; one thread of its own answers librdmacm.
#pragma once

#include <memory>

#include "fabricmgr/memserver/one_sided.h"
#include "runtime/base/result.h"

namespace tidepool::memserver {

/// Listens for RDMA connections at the address and port number that the TCP socket `listener` is
/// bound to. Errors: kUnsupported (no rdma-core, no device, none at that address), kConflict.
Result<std::unique_ptr<OneSided>> startVerbs(int listener);

}  // namespace tidepool::memserver
