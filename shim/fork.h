// SPDX-License-Identifier: Apache-2.0
// fork(): every lock is taken before it and given back on both sides, so that the child never
// inherits one in the hands of a thread it does not have. pthread_atfork runs the last registered
// preparation first, hence the order of calls: inner locks, then the runtime (which registers its
// own handlers as it starts), then the locks under which the runtime is called.
#pragma once

namespace tidepool {

/// The internal heap's lock, under which nothing else is taken. Call before Runtime::start.
void installInnerForkHandlers();
/// The heap's locks. Call after Runtime::start.
void installOuterForkHandlers();

}  // namespace tidepool
