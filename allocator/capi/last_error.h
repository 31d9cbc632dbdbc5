// SPDX-License-Identifier: Apache-2.0
// The last failure of the calling thread, and the one way in which the C API's functions end.
#pragma once

#include "allocator/include/tidepool/tidepool.h"
#include "runtime/base/result.h"

namespace tidepool {

/// Keeps it for the thread, and says what to return.
tidepool_status report(const Error& error);
/// TIDEPOOL_OK, or the failure reported.
tidepool_status report(const Status& status);
/// Of a handle whose object is gone; `what` is "context", "heap".
tidepool_status reportClosed(const char* what);
/// `parameter` is the name of one that may not be NULL.
tidepool_status reportNull(const char* parameter);

}  // namespace tidepool
