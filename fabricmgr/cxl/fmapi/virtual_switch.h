// SPDX-License-Identifier: Apache-2.0
// The virtual switches that a switch shows to hosts (command set 52h): their bridges (vPPBs), and
// what these are bound to. Pure; thread-safe.
// Source: CXL Specification 3.1, section 7.6.7.2.
#pragma once

#include <string_view>
#include <vector>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"

namespace tidepool::cxl::fmapi {

struct Vppb {
  uint8_t binding = 0;  // see bindingText()
  uint8_t port = 0;     // physical port that it is bound to
  uint8_t ld = 0;       // and the logical device there; kNoLd: all of the port
};
struct VirtualSwitch {
  uint8_t id = 0;
  uint8_t state = 0;  // 1: enabled
  uint8_t upstream_port = 0;
  uint8_t vppbs = 0;        // in all
  std::vector<Vppb> shown;  // from the one that was asked for first
};
std::string_view bindingText(uint8_t binding);

inline constexpr uint16_t kNoLd = 0xffff;

/// `most`: how many vPPBs of each are shown. Errors: kInvalidArgument for none or more than 255.
Result<Payload> encodeVirtualSwitchRequest(PayloadView ids, uint8_t first, uint8_t most);
/// Errors: kCorrupt, also for another virtual switch than was asked for.
Result<std::vector<VirtualSwitch>> decodeVirtualSwitches(PayloadView answer, PayloadView ids,
                                                         uint8_t first, uint8_t most);

/// kNoLd binds the whole port.
Payload encodeBind(uint8_t virtual_switch, uint8_t vppb, uint8_t port, uint16_t ld);
enum class Unbinding : uint8_t { kWhenLinkIsDown = 0, kManagedRemoval = 1, kSurpriseRemoval = 2 };
Payload encodeUnbind(uint8_t virtual_switch, uint8_t vppb, Unbinding how);

}  // namespace tidepool::cxl::fmapi
