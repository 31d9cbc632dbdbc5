// SPDX-License-Identifier: Apache-2.0
// The one word of thread-local storage that the shim owns. Per-thread, never shared.
#include "shim/internal_scope.h"

namespace tidepool {

constinit __thread ThreadMode t_thread_mode = ThreadMode::kUnbound;

}  // namespace tidepool
