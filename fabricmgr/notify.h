// SPDX-License-Identifier: Apache-2.0
// What a service tells systemd: ready, stopping, alive, how it is. Does nothing where there is no
// service manager (NOTIFY_SOCKET). Thread-safe.
#pragma once

#include <string>

namespace tidepool {

/// "READY=1", "STATUS=...", "WATCHDOG=1": one a line, as sd_notify(3) has them.
void notifyServiceManager(const std::string& message);

}  // namespace tidepool
