// SPDX-License-Identifier: Apache-2.0
// The commands of CXL's Fabric Manager API (sets 51h to 54h and 56h), and the few of a component's
// own (00h, 40h) that go with them, as one table; return codes as text and as errors. Constants;
// thread-safe.
// Source: CXL Specification 3.1, sections 7.6.7, 8.2.9 and, for return codes, 8.2.8.4.5.1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

/// Command set in the upper byte, command in the lower.
enum class Opcode : uint16_t {
  kIdentify = 0x0001,
  kIdentifyMemoryDevice = 0x4000,
  kIdentifySwitchDevice = 0x5100,
  kGetPhysicalPortState = 0x5101,
  kPhysicalPortControl = 0x5102,
  kGetVirtualSwitchInfo = 0x5200,
  kBindVppb = 0x5201,
  kUnbindVppb = 0x5202,
  kTunnelManagementCommand = 0x5300,
  kGetLdInfo = 0x5400,
  kGetLdAllocations = 0x5401,
  kGetDcdInfo = 0x5600,
  kGetDcRegionExtentLists = 0x5603,
  kInitiateDcAdd = 0x5604,
  kInitiateDcRelease = 0x5605,
};

struct Command {
  Opcode opcode;
  std::string_view name;   // as the specification has it
  uint16_t request_bytes;  // what a request has at least
  uint16_t answer_bytes;   // what an answer has at least
};

std::span<const Command> commands();
/// Its name; "vendor or unknown command" for what the table has not.
std::string_view nameOf(Opcode opcode);
/// Name and number, as errors begin: "Identify (0001h)".
std::string titleOf(Opcode opcode);

/// A mailbox's or a message's return code.
enum class ReturnCode : uint16_t {
  kSuccess = 0,
  kBackgroundStarted = 1,
  kInvalidInput = 2,
  kUnsupported = 3,
  kRetryRequired = 5,
  kBusy = 6,
};
/// As the specification calls it, such as "Invalid Input"; "unknown return code" otherwise.
std::string_view textOf(ReturnCode code);

/// What a command came to. Errors name the command and the return code: kUnsupported, kConflict
/// (busy, or to be tried again), kInvalidArgument (invalid input or length), kIo. Nothing for
/// kSuccess.
Status statusOf(Opcode opcode, ReturnCode code, uint16_t vendor_status);

/// Whether an answer is as long as the table says, at least: later versions of the specification
/// append fields. Errors: kCorrupt.
Status checkAnswer(Opcode opcode, PayloadView answer);

/// Whether what follows the fixed part of an answer is exactly `count` entries. Errors: kCorrupt.
Status checkList(Opcode opcode, PayloadView rest, size_t count, size_t entry_bytes);

}  // namespace tidepool::cxl::fmapi
