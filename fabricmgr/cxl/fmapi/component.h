// SPDX-License-Identifier: Apache-2.0
// What every CXL component tells of itself: Identify (0001h), and of memory Identify Memory Device
// (4000h). Pure; thread-safe.
// Source: CXL Specification 3.1, sections 8.2.9.1.1 and 8.2.9.9.1.1.
#pragma once

#include <string>
#include <string_view>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl::fmapi {

struct Identity {
  uint16_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem = 0;  // as PCI has them
  uint64_t serial = 0;
  uint8_t longest_message = 0;  // 2 to the power of it, bytes
  uint8_t component = 0;        // 0: switch, 3: type-3 device
};
/// Errors: kCorrupt.
Result<Identity> decodeIdentity(PayloadView answer);
/// "switch", "type-3", or "unknown".
std::string_view componentText(uint8_t component);

struct MemoryIdentity {
  std::string firmware;  // printable characters alone
  Bytes total, volatile_only, persistent_only;
};
/// Errors: kCorrupt.
Result<MemoryIdentity> decodeMemoryIdentity(PayloadView answer);

}  // namespace tidepool::cxl::fmapi
