// SPDX-License-Identifier: Apache-2.0
// The drivers that this program has, by class of device. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/cxl_driver.h"
#include "fabricmgr/device/device_driver.h"
#include "fabricmgr/tls/tls_context.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {

/// The emulated CXL pool: a file whose bytes are the device's, and beside it, in FILE.grants, who
/// holds which of them. It cannot keep a process that has mapped the file from using it: hosts'
/// agents look at the epoch. The file is `device.address`; one that is missing or empty is made
/// `device.capacity` long. `wall_clock` is borrowed. Errors: kUnreachable (cannot open),
/// kInvalidArgument (capacity), kConflict (another process has the pool), and as DriverFactory has
/// them of other managers.
Result<std::shared_ptr<DeviceDriver>> openPoolFile(const Device& device, Leadership& leadership,
                                                   const Clock& wall_clock);

/// A memory server: orders over its control port at `device.address` (HOST:PORT), over TLS, one at
/// a time; `timeout` bounds each. Its certificate has to be for `device.name`. What it holds is
/// gone when the server ends. Errors: kUnreachable, kTimedOut, kPermission (a certificate of either
/// side is refused), kUnsupported, and as DriverFactory has them of other managers.
Result<std::shared_ptr<DeviceDriver>> openMemserver(const Device& device, Leadership& leadership,
                                                    const std::shared_ptr<TlsInUse>& tls,
                                                    Nanoseconds timeout);

struct DriverSettings {
  const Clock* wall_clock = nullptr;   // for evidence; not owned, must outlive the drivers
  std::shared_ptr<TlsInUse> tls = {};  // to memory servers; null: there are none
  Nanoseconds timeout = Nanoseconds(5'000'000'000);  // of one request to a memory server
  CxlSettings cxl = {};
};

/// CXL devices are devices of that kind if their address is cxl:SERIAL, else pool files; remote
/// ones memory servers with a control port.
DriverFactory makeDriverFactory(const DriverSettings& settings);

}  // namespace tidepool::fabric
