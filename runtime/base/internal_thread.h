// SPDX-License-Identifier: Apache-2.0
// Marks a thread as one of Tidepool's own. Such a thread must never be given managed memory, or it
// could wait for a fault that only it can serve. Our malloc installs the hook before
// the runtime starts; without one the calls do nothing. Thread-safe.
#pragma once

namespace tidepool {

/// Called once, before the runtime starts any thread. `hook` must not allocate.
void setInternalThreadHook(void (*hook)());

/// The first thing each service thread does.
void enterInternalThread();

}  // namespace tidepool
