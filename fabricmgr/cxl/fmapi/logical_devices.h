// SPDX-License-Identifier: Apache-2.0
// The logical devices (LDs) of a multi-logical device (command set 54h), as its FM-owned LD tells.
// Pure; thread-safe.
// Source: CXL Specification 3.1, section 7.6.7.4.
#pragma once

#include <vector>

#include "fabricmgr/cxl/fmapi/payload.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl::fmapi {

struct LdInfo {
  Bytes memory;  // of the whole device
  uint16_t count = 0;
  uint8_t qos_telemetry = 0;  // bits
};
/// Errors: kCorrupt.
Result<LdInfo> decodeLdInfo(PayloadView answer);

struct LdAllocation {
  Bytes range1, range2;
};
struct LdAllocations {
  uint8_t count = 0;  // of all logical devices
  uint8_t first = 0;  // the one that `list` begins with
  std::vector<LdAllocation> list;
};
Payload encodeLdAllocationsRequest(uint8_t first, uint8_t most);
/// Errors: kCorrupt.
Result<LdAllocations> decodeLdAllocations(PayloadView answer);

}  // namespace tidepool::cxl::fmapi
