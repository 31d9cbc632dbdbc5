// SPDX-License-Identifier: Apache-2.0
// fork(): every lock of the shim is taken before it and given back on both sides, outermost first,
// so that the child never inherits one in the hands of a thread it does not have.
#pragma once

namespace tidepool {

/// Call once, after the heap has started.
void installForkHandlers();

}  // namespace tidepool
