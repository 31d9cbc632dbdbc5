// SPDX-License-Identifier: Apache-2.0
// The walk: the switch, its ports, the FM-owned logical device behind each, its logical devices.
#include "fabricmgr/cxl/fmapi/discover.h"

#include <algorithm>

#include "fabricmgr/cxl/fmapi/tunnel_mailbox.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr size_t kMostLogicalDevices = 16;  // of a device, by the specification
constexpr uint8_t kMostVppbs = 255;
constexpr uint8_t kSwitchesPerRequest = 1;  // so that any mailbox has room for its bridges

/// A command that has no request, and its answer decoded.
template <typename Answer>
Result<Answer> ask(Mailbox& mailbox, Opcode opcode, Result<Answer> (*decode)(PayloadView)) {
  const auto answer = mailbox.call(opcode, {});
  if (!answer) return tl::unexpected(answer.error());
  return decode(*answer);
}

/// Nothing where the component has no such command.
template <typename Answer>
Result<std::optional<Answer>> optional(Result<Answer> answer) {
  if (answer) return std::optional<Answer>(std::move(*answer));
  if (answer.error().code() == ErrorCode::kUnsupported) return std::optional<Answer>();
  return tl::unexpected(answer.error());
}

template <typename Answer>
Result<std::optional<Answer>> askIfThere(Mailbox& mailbox, Opcode opcode,
                                         Result<Answer> (*decode)(PayloadView)) {
  return optional(ask(mailbox, opcode, decode));
}

Result<LdAllocations> askAllocations(Mailbox& mailbox) {
  const auto answer =
      mailbox.call(Opcode::kGetLdAllocations, encodeLdAllocationsRequest(0, kMostLogicalDevices));
  if (!answer) return tl::unexpected(answer.error());
  return decodeLdAllocations(*answer);
}

Result<LogicalDevice> askLogicalDevice(Mailbox& owner, uint8_t id) {
  TunnelMailbox mailbox(owner, id);
  LogicalDevice device;
  device.id = id;
  const auto identity = ask(mailbox, Opcode::kIdentify, decodeIdentity);
  if (!identity) return tl::unexpected(identity.error());
  device.identity = *identity;
  auto memory = askIfThere(mailbox, Opcode::kIdentifyMemoryDevice, decodeMemoryIdentity);
  if (!memory) return tl::unexpected(memory.error());
  device.memory = std::move(*memory);
  return device;
}

/// How many logical devices to look for: what the device says, else what the port can have.
size_t logicalDevicesOf(const std::optional<LdInfo>& info, const PortState& port) {
  const size_t told = info ? info->count : std::max<size_t>(port.logical_devices, 1);
  return std::min(told, kMostLogicalDevices);
}

/// Those that are there. Without Get LD Info nobody says how many: the first that the device does
/// not know ends them.
Result<std::vector<LogicalDevice>> askLogicalDevices(Mailbox& owner, const BehindPort& behind,
                                                     const PortState& port) {
  std::vector<LogicalDevice> devices;
  for (size_t id = 0; id < logicalDevicesOf(behind.info, port); ++id) {
    auto device = askLogicalDevice(owner, static_cast<uint8_t>(id));
    if (device) {
      devices.push_back(std::move(*device));
      continue;
    }
    const ErrorCode code = device.error().code();
    const bool absent = code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported;
    if (behind.info || !absent) return tl::unexpected(device.error());
    break;
  }
  return devices;
}

Result<BehindPort> askBehind(Mailbox& mailbox, const PortState& port) {
  TunnelMailbox owner(mailbox, port.port);
  BehindPort behind;
  const auto identity = ask(owner, Opcode::kIdentify, decodeIdentity);
  if (!identity) return tl::unexpected(identity.error());
  behind.identity = *identity;
  const auto info = askIfThere(owner, Opcode::kGetLdInfo, decodeLdInfo);
  if (!info) return tl::unexpected(info.error());
  behind.info = *info;
  const auto capacity = askIfThere(owner, Opcode::kGetDcdInfo, decodeDcdInfo);
  if (!capacity) return tl::unexpected(capacity.error());
  behind.dynamic_capacity = *capacity;
  // A single-logical device has none behind it: it is one.
  if (!port.hasMultiLogicalDevice()) return behind;
  auto devices = askLogicalDevices(owner, behind, port);
  if (!devices) return tl::unexpected(devices.error());
  behind.logical_devices = std::move(*devices);
  const auto allocations = optional(askAllocations(owner));
  if (!allocations) return tl::unexpected(allocations.error());
  if (!*allocations) return behind;
  for (LogicalDevice& device : behind.logical_devices) {
    const size_t place = device.id - (*allocations)->first;
    if (place < (*allocations)->list.size()) device.allocation = (*allocations)->list[place];
  }
  return behind;
}

/// What is behind a port, or why that is not known. Single-logical devices need not take commands
/// by way of a switch: that one does not is no trouble.
void lookBehind(Mailbox& mailbox, Port& port) {
  auto behind = askBehind(mailbox, port.state);
  if (behind) {
    port.behind = std::move(*behind);
    return;
  }
  const ErrorCode code = behind.error().code();
  const bool refused = code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported;
  if (refused && !port.state.hasMultiLogicalDevice()) return;
  port.trouble = behind.error().text();
}

Payload numbersOf(const std::bitset<256>& bits) {
  Payload numbers;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) numbers.push_back(static_cast<uint8_t>(i));
  }
  return numbers;
}

Result<std::vector<PortState>> askPorts(Mailbox& mailbox, const Payload& numbers) {
  const size_t at_once = portsPerRequest(mailbox.payloadBytes());
  if (at_once == 0) {
    return fail(ErrorCode::kCorrupt, "a mailbox of %zu bytes has no room for a port's state",
                mailbox.payloadBytes());
  }
  std::vector<PortState> ports;
  for (PayloadView left = numbers; !left.empty();) {
    const PayloadView some = left.first(std::min(at_once, left.size()));
    left = left.subspan(some.size());
    const auto request = encodePortStateRequest(some);
    if (!request) return tl::unexpected(request.error());
    const auto answer = mailbox.call(Opcode::kGetPhysicalPortState, *request);
    if (!answer) return tl::unexpected(answer.error());
    const auto states = decodePortStates(*answer, some);
    if (!states) return states;
    ports.insert(ports.end(), states->begin(), states->end());
  }
  return ports;
}

Result<std::vector<VirtualSwitch>> askVirtualSwitches(Mailbox& mailbox, const Payload& ids) {
  std::vector<VirtualSwitch> found;
  for (PayloadView left = ids; !left.empty(); left = left.subspan(kSwitchesPerRequest)) {
    const PayloadView one = left.first(kSwitchesPerRequest);
    // An answer has 8 bytes besides the bridges, of 4 bytes each.
    const size_t room = mailbox.payloadBytes() / 4 - 2;
    const auto most = static_cast<uint8_t>(std::min<size_t>(kMostVppbs, room));
    const auto request = encodeVirtualSwitchRequest(one, 0, most);
    if (!request) return tl::unexpected(request.error());
    const auto answer = mailbox.call(Opcode::kGetVirtualSwitchInfo, *request);
    if (!answer) return tl::unexpected(answer.error());
    auto decoded = decodeVirtualSwitches(*answer, one, 0, most);
    if (!decoded) return decoded;
    found.push_back(std::move(decoded->front()));
  }
  return found;
}

}  // namespace

Result<SwitchReport> discoverSwitch(Mailbox& mailbox) {
  SwitchReport report;
  const auto identity = ask(mailbox, Opcode::kIdentify, decodeIdentity);
  if (!identity) return tl::unexpected(identity.error());
  report.identity = *identity;
  const auto device = ask(mailbox, Opcode::kIdentifySwitchDevice, decodeSwitchDevice);
  if (!device) return tl::unexpected(device.error());
  report.device = *device;
  const auto states = askPorts(mailbox, numbersOf(device->active_ports));
  if (!states) return tl::unexpected(states.error());
  for (const PortState& state : *states) {
    Port port;
    port.state = state;
    if (state.hasMemoryDevice()) lookBehind(mailbox, port);
    report.ports.push_back(std::move(port));
  }
  auto virtual_switches =
      optional(askVirtualSwitches(mailbox, numbersOf(device->active_virtual_switches)));
  if (!virtual_switches) return tl::unexpected(virtual_switches.error());
  report.virtual_switches = std::move(*virtual_switches);
  return report;
}

}  // namespace tidepool::cxl::fmapi
