// SPDX-License-Identifier: Apache-2.0
// What the manager tells an agent of its host's regions, and its reading from JSON. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricmgr/api/json_value.h"
#include "fabricmgr/model/region_state.h"
#include "fabricmgr/model/types.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::agent {

/// Regions with this label are made by agents for programs that ask, and given back after them.
inline constexpr const char* kOnDemandLabel = "on-demand";

/// One of the host's regions, as a list shows it.
struct SeenRegion {
  uint64_t id = 0;
  std::string label;
  fabric::RegionState state = fabric::RegionState::kFree;
  Epoch epoch{};
  Bytes size;
  uint64_t replaces = 0;   // the region whose place it is taking; 0: none's
  Nanoseconds drain_left;  // until its drain goes on by force; 0: never, or no drain
};

/// A device's part of a region.
struct AccessPart {
  fabric::DeviceId device;
  fabric::MemoryClass memory_class = fabric::MemoryClass::kCxl;
  std::string address;                  // the pool file's path, or HOST:PORT
  std::vector<fabric::Extent> extents;  // in the order of the region's
  std::string token;                    // in hexadecimal; memory servers only
};

struct RegionAccess {
  uint64_t region = 0;
  Epoch epoch{};
  Bytes size;
  std::vector<fabric::Extent> extents;  // in the order in which they make the region up
  std::vector<AccessPart> parts;        // one for each device; each extent is in one of them
};

// Errors: kCorrupt, when the manager's answer is not what the API's description says.
/// Adds one page of a list; returns where the next one begins, 0 after the last.
Result<uint64_t> addRegions(const api::JsonValue& page, std::vector<SeenRegion>* regions);
Result<RegionAccess> accessIn(const api::JsonValue& body);

}  // namespace tidepool::agent
