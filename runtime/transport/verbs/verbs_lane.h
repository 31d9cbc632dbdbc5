// SPDX-License-Identifier: Apache-2.0
// Lanes by RDMA verbs: a reliable connection made by librdmacm, READ and WRITE past the server's
// processor through a ring of registered memory, from and to which pages are copied: the caller's
// memory can move, and be given back to the kernel, so it is never registered. The source is
// thread-safe; a lane belongs to one thread.
#pragma once

#include "runtime/transport/page_lane.h"

namespace tidepool {

/// Loads rdma-core at the first question. A child of fork() gets none: rdma-core cannot be used on
/// both sides of one.
LaneSource& verbsLanes();

}  // namespace tidepool
