// SPDX-License-Identifier: Apache-2.0
// The switch as it is built (command set 51h): what it has, and how its ports are. Pure;
// thread-safe.
// Source: CXL Specification 3.1, section 7.6.7.1.
#pragma once

#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

struct SwitchDevice {
  uint8_t ingress_port = 0;  // that the question came in by
  uint8_t physical_ports = 0;
  uint8_t virtual_switches = 0;
  std::bitset<256> active_ports, active_virtual_switches;  // by number
  uint16_t vppbs = 0, bound_vppbs = 0;                     // virtual PCI-to-PCI bridges
  uint8_t hdm_decoders = 0;                                // of an upstream port
};
/// Errors: kCorrupt, also for more active ports than there are.
Result<SwitchDevice> decodeSwitchDevice(PayloadView answer);

struct PortState {
  uint8_t port = 0;
  uint8_t configuration = 0;                   // see configurationText()
  uint8_t device_mode = 0;                     // see deviceModeText()
  uint8_t device_type = 0;                     // see deviceTypeText()
  uint8_t supported_modes = 0;                 // bits
  uint8_t widest = 0, width = 0;               // lanes
  uint8_t speeds = 0, fastest = 0, speed = 0;  // as PCIe codes them: 1 is 2.5 GT/s
  uint8_t ltssm = 0;                           // see linkStateText()
  uint8_t first_lane = 0;
  uint16_t link_flags = 0;
  uint8_t logical_devices = 0;  // that the port supports

  bool isDownstream() const;
  /// A type-3 device, single- or multi-logical: one that answers through a tunnel.
  bool hasMemoryDevice() const;
  bool hasMultiLogicalDevice() const;
};
std::string_view configurationText(uint8_t configuration);
std::string_view deviceModeText(uint8_t mode);
std::string_view deviceTypeText(uint8_t type);
std::string_view linkStateText(uint8_t ltssm);
/// "x16 32 GT/s"; "down" without lanes.
std::string linkText(const PortState& port);

/// How many ports may be asked for at once: the answer has to fit so many bytes.
size_t portsPerRequest(size_t payload_bytes);
/// Errors: kInvalidArgument for none, or more than 255.
Result<Payload> encodePortStateRequest(PayloadView ports);
/// In the order in which `asked` has them. Errors: kCorrupt, also for another port than was asked
/// for.
Result<std::vector<PortState>> decodePortStates(PayloadView answer, PayloadView asked);

enum class PortControl : uint8_t { kAssertReset = 0, kDeassertReset = 1, kResetDevice = 2 };
Payload encodePortControl(uint8_t port, PortControl control);

}  // namespace tidepool::cxl::fmapi
