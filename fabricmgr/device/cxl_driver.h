// SPDX-License-Identifier: Apache-2.0
// Pooled CXL devices, named by serial number ("cxl:0x101"), in two kinds.
// With a switch: logical devices, given out whole, each bound to one host at a time. A device that
// is revoked is unbound; to be erased it is bound to the manager's own machine, sanitized by its
// own command, and read back. An unbound device cannot be reached by its last host at all.
// Without: one device of which every host, the manager's machine too, has a head of its own. Hosts
// get extents of it; the manager writes zeros over them at its own head. Nothing but the hosts'
// agents keeps a host from the extents of another.
// Who holds what is in a file of the manager's (see GrantLog). Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "fabricmgr/device/device_driver.h"
#include "runtime/base/clock.h"

namespace tidepool::fabric {

inline constexpr const char* kCxlScheme = "cxl:";

struct CxlSettings {
  std::string switch_program;    // see switch_command.h; empty: there is no switch
  std::string host = "manager";  // as whose port the switch knows the manager's own machine
  std::string state_folder = ".";
};

/// Errors: kUnreachable (device, switch), kInvalidArgument (address, capacity, granularity),
/// kConflict (another process has its grants), and as DriverFactory has them of other managers.
Result<std::shared_ptr<DeviceDriver>> openCxl(const Device& device, Leadership& leadership,
                                              const CxlSettings& settings, const Clock& wall_clock);

}  // namespace tidepool::fabric
