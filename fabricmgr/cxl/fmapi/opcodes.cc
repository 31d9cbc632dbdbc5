// SPDX-License-Identifier: Apache-2.0
// The tables of commands and of return codes.
#include "fabricmgr/cxl/fmapi/opcodes.h"

#include <fmt/format.h>

#include <iterator>

namespace tidepool::cxl::fmapi {
namespace {

// clang-format off
constexpr Command kCommands[] = {
  {Opcode::kIdentify, "Identify", 0, 0x12},
  {Opcode::kIdentifyMemoryDevice, "Identify Memory Device", 0, 0x43},
  {Opcode::kIdentifySwitchDevice, "Identify Switch Device", 0, 0x49},
  {Opcode::kGetPhysicalPortState, "Get Physical Port State", 1, 0x04},
  {Opcode::kPhysicalPortControl, "Physical Port Control", 2, 0},
  {Opcode::kGetVirtualSwitchInfo, "Get Virtual CXL Switch Info", 3, 0x04},
  {Opcode::kBindVppb, "Bind vPPB", 6, 0},
  {Opcode::kUnbindVppb, "Unbind vPPB", 3, 0},
  {Opcode::kTunnelManagementCommand, "Tunnel Management Command", 0x10, 0x10},
  {Opcode::kGetLdInfo, "Get LD Info", 0, 0x0b},
  {Opcode::kGetLdAllocations, "Get LD Allocations", 2, 0x04},
  {Opcode::kGetDcdInfo, "Get DCD Info", 0, 0x54},
  {Opcode::kGetDcRegionExtentLists, "Get DC Region Extent Lists", 0x0c, 0x18},
  {Opcode::kInitiateDcAdd, "Initiate Dynamic Capacity Add", 0x20, 0},
  {Opcode::kInitiateDcRelease, "Initiate Dynamic Capacity Release", 0x20, 0},
};
// clang-format on

// By return code; the places are the codes.
constexpr std::string_view kReturnCodes[] = {
    "Success",
    "Background Command Started",
    "Invalid Input",
    "Unsupported",
    "Internal Error",
    "Retry Required",
    "Busy",
    "Media Disabled",
    "FW Transfer in Progress",
    "FW Transfer Out of Order",
    "FW Verification Failed",
    "Invalid Slot",
    "Activation Failed, FW Rolled Back",
    "Activation Failed, Cold Reset Required",
    "Invalid Handle",
    "Invalid Physical Address",
    "Inject Poison Limit Reached",
    "Permanent Media Failure",
    "Aborted",
    "Invalid Security State",
    "Incorrect Passphrase",
    "Unsupported Mailbox or CCI",
    "Invalid Payload Length",
    "Invalid Log",
    "Interrupted",
    "Unsupported Feature Version",
    "Unsupported Feature Selection Value",
    "Feature Transfer in Progress",
    "Feature Transfer Out of Order",
    "Resources Exhausted",
    "Invalid Extent List",
};
constexpr uint16_t kUnsupportedMailbox = 0x15;
constexpr uint16_t kInvalidPayloadLength = 0x16;

const Command* find(Opcode opcode) {
  for (const Command& one : kCommands) {
    if (one.opcode == opcode) return &one;
  }
  return nullptr;
}

ErrorCode errorOf(ReturnCode code) {
  switch (static_cast<uint16_t>(code)) {
    case static_cast<uint16_t>(ReturnCode::kUnsupported):
    case kUnsupportedMailbox:
      return ErrorCode::kUnsupported;
    case static_cast<uint16_t>(ReturnCode::kRetryRequired):
    case static_cast<uint16_t>(ReturnCode::kBusy):
      return ErrorCode::kConflict;
    case static_cast<uint16_t>(ReturnCode::kInvalidInput):
    case kInvalidPayloadLength:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kIo;
  }
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

std::string_view nameOf(Opcode opcode) {
  const Command* command = find(opcode);
  return command == nullptr ? "vendor or unknown command" : command->name;
}

std::string_view textOf(ReturnCode code) {
  const auto place = static_cast<uint16_t>(code);
  return place < std::size(kReturnCodes) ? kReturnCodes[place] : "unknown return code";
}

std::string titleOf(Opcode opcode) {
  return fmt::format("{} ({:04x}h)", nameOf(opcode), static_cast<unsigned>(opcode));
}

Status statusOf(Opcode opcode, ReturnCode code, uint16_t vendor_status) {
  if (code == ReturnCode::kSuccess) return {};
  const std::string_view text = textOf(code);
  return fail(errorOf(code), "%s: %.*s (return code %xh, vendor status %xh)%s",
              titleOf(opcode).c_str(), static_cast<int>(text.size()), text.data(),
              static_cast<unsigned>(code), static_cast<unsigned>(vendor_status),
              errorOf(code) == ErrorCode::kConflict ? "; try again" : "");
}

Status checkAnswer(Opcode opcode, PayloadView answer) {
  const Command* command = find(opcode);
  const size_t least = command == nullptr ? 0 : command->answer_bytes;
  if (answer.size() >= least) return {};
  return fail(ErrorCode::kCorrupt, "%s: the answer has %zu bytes, it takes %zu",
              titleOf(opcode).c_str(), answer.size(), least);
}

Status checkList(Opcode opcode, PayloadView rest, size_t count, size_t entry_bytes) {
  if (rest.size() == count * entry_bytes) return {};
  return fail(ErrorCode::kCorrupt,
              "%s: the answer counts %zu entries of %zu bytes, but has %zu bytes of them",
              titleOf(opcode).c_str(), count, entry_bytes, rest.size());
}

}  // namespace tidepool::cxl::fmapi
