// SPDX-License-Identifier: Apache-2.0
// The emulated CXL pool: a file whose bytes are the device's, and beside it, in FILE.grants, who
// holds which of them. It cannot keep a process that has mapped the file from using it: hosts'
// agents look at the epoch. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/device_driver.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {

/// Opens the pool at `device.address`; a file that is missing or empty is made `device.capacity`
/// long. `wall_clock` is borrowed. Errors: kUnreachable (cannot open), kInvalidArgument (capacity),
/// kConflict (another process has the pool).
Result<std::shared_ptr<DeviceDriver>> openPoolFile(const Device& device, const Clock& wall_clock);

}  // namespace tidepool::fabric
