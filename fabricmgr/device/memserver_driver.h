// SPDX-License-Identifier: Apache-2.0
// A memory server as a device: orders over its control port, sealed with the key that both sides
// have. What it holds is gone when the server ends. Thread-safe; one request at a time.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/device_driver.h"
#include "runtime/base/units.h"

namespace tidepool::fabric {

/// Connects to the control port at `device.address` (HOST:PORT). `timeout` bounds each request.
/// Errors: kUnreachable, kTimedOut, kPermission (another key), kUnsupported.
Result<std::shared_ptr<DeviceDriver>> openMemserver(const Device& device, const std::string& key,
                                                    Nanoseconds timeout);

}  // namespace tidepool::fabric
