// SPDX-License-Identifier: Apache-2.0
// Marks the runtime's own threads, so that a malloc shim can keep their allocations out of managed
// memory (invariant I2). The hook is set once, before the first such thread starts.
#pragma once

namespace tidepool {

/// `hook` is called by each service thread before anything else; null for none.
void setInternalThreadHook(void (*hook)());
/// Called first in every service thread.
void enterInternalThread();

}  // namespace tidepool
