// SPDX-License-Identifier: Apache-2.0
// The drivers that this program has, by class of device. Thread-safe.
#pragma once

#include <string>

#include "fabricmgr/device/cxl_driver.h"
#include "fabricmgr/device/device_driver.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {

struct DriverSettings {
  const Clock* wall_clock = nullptr;  // for evidence; not owned, must outlive the drivers
  std::string memserver_key = {};     // shared with the memory servers; empty: there are none
  Nanoseconds timeout = Nanoseconds(5'000'000'000);  // of one request to a memory server
  CxlSettings cxl = {};
};

/// CXL devices are devices of that kind if their address is cxl:SERIAL, else pool files; remote
/// ones memory servers with a control port.
DriverFactory makeDriverFactory(const DriverSettings& settings);

}  // namespace tidepool::fabric
