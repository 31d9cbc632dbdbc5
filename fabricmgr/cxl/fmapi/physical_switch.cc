// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders of command set 51h.
#include "fabricmgr/cxl/fmapi/physical_switch.h"

#include <fmt/format.h>

#include <iterator>

#include "fabricmgr/cxl/fmapi/opcodes.h"

namespace tidepool::cxl::fmapi {
namespace {

constexpr size_t kBitmapBytes = 32;
constexpr size_t kPortListHeaderBytes = 4;
constexpr size_t kPortBytes = 16;
constexpr size_t kMostPorts = 255;  // a request counts them in a byte
constexpr uint8_t kLowBits = 0x0f;
constexpr uint8_t kWidthBits = 0x3f;

constexpr uint8_t kDownstreamPort = 3;
constexpr uint8_t kSingleLogicalDevice = 4;
constexpr uint8_t kMultiLogicalDevice = 5;

constexpr std::string_view kConfigurations[] = {"disabled",   "binding",  "unbinding",
                                                "downstream", "upstream", "fabric"};
constexpr std::string_view kDeviceModes[] = {
    "none", "rcd", "68b-flit", "256b-flit", "256b-flit-low-latency", "pbr"};
constexpr std::string_view kDeviceTypes[] = {"none",       "pcie",       "type-1", "type-2",
                                             "type-3-sld", "type-3-mld", "pbr"};
constexpr std::string_view kLinkStates[] = {
    "detect", "polling", "configuration", "recovery", "L0",       "L0s",
    "L1",     "L2",      "disabled",      "loopback", "hot-reset"};
// By PCIe's code of a link's speed.
constexpr std::string_view kSpeeds[] = {"unknown speed", "2.5 GT/s", "5 GT/s", "8 GT/s",
                                        "16 GT/s",       "32 GT/s",  "64 GT/s"};

template <size_t kCount>
std::string_view at(const std::string_view (&texts)[kCount], size_t place) {
  return place < kCount ? texts[place] : "unknown";
}

std::bitset<256> bitmap(PayloadView bytes) {
  std::bitset<256> bits;
  for (size_t i = 0; i < bytes.size() * 8; ++i) bits[i] = (bytes[i / 8] >> (i % 8) & 1) != 0;
  return bits;
}

PortState decodePort(PayloadReader& in) {
  PortState port;
  port.port = in.u8();
  port.configuration = in.u8() & kLowBits;
  port.device_mode = in.u8() & kLowBits;
  in.skip(1);
  port.device_type = in.u8();
  port.supported_modes = in.u8();
  port.widest = in.u8() & kWidthBits;
  port.width = in.u8() & kWidthBits;
  port.speeds = in.u8();
  port.fastest = in.u8();
  port.speed = in.u8();
  port.ltssm = in.u8();
  port.first_lane = in.u8();
  port.link_flags = in.u16();
  port.logical_devices = in.u8();
  return port;
}

}  // namespace

Result<SwitchDevice> decodeSwitchDevice(PayloadView answer) {
  TP_TRY(checkAnswer(Opcode::kIdentifySwitchDevice, answer));
  PayloadReader in(answer);
  SwitchDevice device;
  device.ingress_port = in.u8();
  in.skip(1);
  device.physical_ports = in.u8();
  device.virtual_switches = in.u8();
  device.active_ports = bitmap(in.take(kBitmapBytes));
  device.active_virtual_switches = bitmap(in.take(kBitmapBytes));
  device.vppbs = in.u16();
  device.bound_vppbs = in.u16();
  device.hdm_decoders = in.u8();
  if (device.active_ports.count() > device.physical_ports) {
    return fail(ErrorCode::kCorrupt,
                "Identify Switch Device (5100h): %zu active ports, but %u ports in all",
                device.active_ports.count(), static_cast<unsigned>(device.physical_ports));
  }
  return device;
}

bool PortState::isDownstream() const { return configuration == kDownstreamPort; }

bool PortState::hasMemoryDevice() const {
  return isDownstream() && (device_type == kSingleLogicalDevice || hasMultiLogicalDevice());
}

bool PortState::hasMultiLogicalDevice() const {
  return isDownstream() && device_type == kMultiLogicalDevice;
}

std::string_view configurationText(uint8_t configuration) {
  return at(kConfigurations, configuration);
}
std::string_view deviceModeText(uint8_t mode) { return at(kDeviceModes, mode); }
std::string_view deviceTypeText(uint8_t type) { return at(kDeviceTypes, type); }
std::string_view linkStateText(uint8_t ltssm) { return at(kLinkStates, ltssm); }

std::string linkText(const PortState& port) {
  if (port.width == 0) return "down";
  return fmt::format("x{} {}", port.width, at(kSpeeds, port.speed));
}

size_t portsPerRequest(size_t payload_bytes) {
  if (payload_bytes < kPortListHeaderBytes + kPortBytes) return 0;
  return std::min(kMostPorts, (payload_bytes - kPortListHeaderBytes) / kPortBytes);
}

Result<Payload> encodePortStateRequest(PayloadView ports) {
  if (ports.empty() || ports.size() > kMostPorts) {
    return fail(ErrorCode::kInvalidArgument, "the state of %zu ports: 1 to %zu can be asked for",
                ports.size(), kMostPorts);
  }
  return PayloadWriter().u8(static_cast<uint8_t>(ports.size())).bytes(ports).take();
}

Result<std::vector<PortState>> decodePortStates(PayloadView answer, PayloadView asked) {
  TP_TRY(checkAnswer(Opcode::kGetPhysicalPortState, answer));
  PayloadReader in(answer);
  const size_t count = in.u8();
  in.skip(kPortListHeaderBytes - 1);
  TP_TRY(checkList(Opcode::kGetPhysicalPortState, in.rest(), count, kPortBytes));
  if (count != asked.size()) {
    return fail(ErrorCode::kCorrupt,
                "Get Physical Port State (5101h): %zu ports were asked for, %zu came back",
                asked.size(), count);
  }
  std::vector<PortState> ports;
  for (const uint8_t wanted : asked) {
    ports.push_back(decodePort(in));
    if (ports.back().port == wanted) continue;
    return fail(ErrorCode::kCorrupt,
                "Get Physical Port State (5101h): port %u was asked for, port %u came back",
                static_cast<unsigned>(wanted), static_cast<unsigned>(ports.back().port));
  }
  return ports;
}

Payload encodePortControl(uint8_t port, PortControl control) {
  return PayloadWriter().u8(port).u8(static_cast<uint8_t>(control)).take();
}

}  // namespace tidepool::cxl::fmapi
