// SPDX-License-Identifier: Apache-2.0
// JSON and text of switches.
#include "fabricmgr/cxl/fmapi/show.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tidepool::cxl::fmapi {
namespace {

using Json = nlohmann::ordered_json;

std::string hex(uint64_t number) { return fmt::format("{:#x}", number); }

Json numbersOf(const std::bitset<256>& bits) {
  Json numbers = Json::array();
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) numbers.push_back(i);
  }
  return numbers;
}

Json identityObject(const Identity& identity) {
  return {{"component", componentText(identity.component)},
          {"vendor", hex(identity.vendor)},
          {"device", hex(identity.device)},
          {"serial", hex(identity.serial)}};
}

Json stateObject(const PortState& port) {
  return {{"port", port.port},
          {"configuration", configurationText(port.configuration)},
          {"device_type", deviceTypeText(port.device_type)},
          {"device_mode", deviceModeText(port.device_mode)},
          {"link_state", linkStateText(port.ltssm)},
          {"link_width", port.width},
          {"widest_link", port.widest},
          {"link_speed_code", port.speed},
          {"fastest_link_code", port.fastest},
          {"link_flags", port.link_flags},
          {"supported_modes", port.supported_modes},
          {"supported_logical_devices", port.logical_devices}};
}

Json logicalDeviceObject(const LogicalDevice& device) {
  Json object = identityObject(device.identity);
  object["id"] = device.id;
  object["memory_bytes"] = nullptr;
  if (device.memory) object["memory_bytes"] = device.memory->total.value();
  object["allocated_bytes"] = nullptr;
  if (device.allocation) {
    object["allocated_bytes"] = (device.allocation->range1 + device.allocation->range2).value();
  }
  return object;
}

Json behindObject(const BehindPort& behind) {
  Json object = identityObject(behind.identity);
  object["memory_bytes"] = nullptr;
  if (behind.info) object["memory_bytes"] = behind.info->memory.value();
  object["dynamic_capacity_bytes"] = nullptr;
  if (behind.dynamic_capacity) {
    object["dynamic_capacity_bytes"] = behind.dynamic_capacity->capacity.value();
  }
  object["logical_devices"] = Json::array();
  for (const LogicalDevice& one : behind.logical_devices) {
    object["logical_devices"].push_back(logicalDeviceObject(one));
  }
  return object;
}

Json portObject(const Port& port) {
  Json object = stateObject(port.state);
  object["behind"] = port.behind ? behindObject(*port.behind) : Json();
  object["trouble"] = port.trouble;
  return object;
}

Json virtualSwitchObject(const VirtualSwitch& one) {
  Json bridges = Json::array();
  for (const Vppb& vppb : one.shown) {
    bridges.push_back(
        {{"binding", bindingText(vppb.binding)}, {"port", vppb.port}, {"ld", vppb.ld}});
  }
  return {{"id", one.id},
          {"enabled", one.state == 1},
          {"upstream_port", one.upstream_port},
          {"vppbs", std::move(bridges)}};
}

Json switchObject(const SwitchReport& report) {
  const SwitchDevice& device = report.device;
  Json object = identityObject(report.identity);
  object["ingress_port"] = device.ingress_port;
  object["physical_ports"] = device.physical_ports;
  object["active_ports"] = numbersOf(device.active_ports);
  object["virtual_switches"] = device.virtual_switches;
  object["active_virtual_switches"] = numbersOf(device.active_virtual_switches);
  object["vppbs"] = device.vppbs;
  object["bound_vppbs"] = device.bound_vppbs;
  object["hdm_decoders"] = device.hdm_decoders;
  object["ports"] = Json::array();
  for (const Port& port : report.ports) object["ports"].push_back(portObject(port));
  object["bindings"] = nullptr;
  if (report.virtual_switches) {
    object["bindings"] = Json::array();
    for (const VirtualSwitch& one : *report.virtual_switches) {
      object["bindings"].push_back(virtualSwitchObject(one));
    }
  }
  return object;
}

std::string mib(Bytes size) { return fmt::format("{} MiB", size.value() / kMiB); }

/// What a device said, in words: only what it did say.
std::string behindText(const BehindPort& behind) {
  std::string out =
      fmt::format("{} {:#x}", componentText(behind.identity.component), behind.identity.serial);
  if (behind.info) out += ", " + mib(behind.info->memory);
  if (behind.dynamic_capacity) out += ", dynamic " + mib(behind.dynamic_capacity->capacity);
  for (const LogicalDevice& one : behind.logical_devices) {
    out += fmt::format("; LD {}", one.id);
    if (one.memory) out += " " + mib(one.memory->total);
  }
  return out;
}

std::string portLine(const Port& port) {
  const PortState& state = port.state;
  std::string behind = port.behind ? behindText(*port.behind) : "-";
  if (!port.trouble.empty()) behind = "not known: " + port.trouble;
  // Of a port without a device the mode has no meaning.
  const bool empty = state.device_type == 0;
  return fmt::format("  {:<5} {:<11} {:<14} {:<11} {:<22} {}\n", state.port,
                     configurationText(state.configuration), linkText(state),
                     empty ? "-" : deviceTypeText(state.device_type),
                     empty ? "-" : deviceModeText(state.device_mode), behind);
}

}  // namespace

std::string switchesJson(std::span<const Found> found) {
  Json switches = Json::array();
  for (const Found& one : found) {
    Json object = {{"address", one.function.address}};
    if (one.report) object.update(switchObject(*one.report));
    object["trouble"] = one.report ? "" : one.report.error().text();
    switches.push_back(std::move(object));
  }
  return Json({{"switches", std::move(switches)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string switchesText(std::span<const Found> found) {
  std::string out;
  for (const Found& one : found) {
    if (!one.report) continue;
    const SwitchDevice& device = one.report->device;
    out += fmt::format(
        "{}: switch {:#x}; ports {}, active {}; virtual switches {}; vPPBs {}, bound {}\n",
        one.function.address, one.report->identity.serial, device.physical_ports,
        device.active_ports.count(), device.virtual_switches, device.vppbs, device.bound_vppbs);
    out += fmt::format("  {:<5} {:<11} {:<14} {:<11} {:<22} {}\n", "PORT", "IS", "LINK", "DEVICE",
                       "MODE", "BEHIND");
    for (const Port& port : one.report->ports) out += portLine(port);
  }
  return out;
}

}  // namespace tidepool::cxl::fmapi
