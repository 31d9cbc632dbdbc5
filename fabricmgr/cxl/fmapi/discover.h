// SPDX-License-Identifier: Apache-2.0
// Walks a switch through its mailbox: what it is, its ports, and the devices behind them. Changes
// nothing. Plain values, true at the moment of asking. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/cxl/fmapi/component.h"
#include "fabricmgr/cxl/fmapi/dynamic_capacity.h"
#include "fabricmgr/cxl/fmapi/logical_devices.h"
#include "fabricmgr/cxl/fmapi/mailbox.h"
#include "fabricmgr/cxl/fmapi/physical_switch.h"
#include "fabricmgr/cxl/fmapi/virtual_switch.h"

namespace tidepool::cxl::fmapi {

struct LogicalDevice {
  uint8_t id = 0;
  Identity identity;
  std::optional<MemoryIdentity> memory;  // nothing: it does not tell
  std::optional<LdAllocation> allocation;
};

/// What answers behind a port.
struct BehindPort {
  Identity identity;           // of the FM-owned logical device
  std::optional<LdInfo> info;  // here and below: nothing where the device has no such command
  std::optional<DcdInfo> dynamic_capacity;
  std::vector<LogicalDevice> logical_devices;
};

struct Port {
  PortState state;
  std::optional<BehindPort> behind;
  std::string trouble;  // why nothing is known of what is behind; empty: all is well
};

struct SwitchReport {
  Identity identity;
  SwitchDevice device;
  std::vector<Port> ports;                                     // the active ones, by number
  std::optional<std::vector<VirtualSwitch>> virtual_switches;  // nothing: it does not tell
};

/// Errors: of the mailbox, as soon as the switch itself does not answer as it should. What goes
/// wrong behind a port is that port's `trouble`.
Result<SwitchReport> discoverSwitch(Mailbox& mailbox);

}  // namespace tidepool::cxl::fmapi
