// SPDX-License-Identifier: Apache-2.0
// What is asked of placement, and the plan it answers with. Plain values.
#pragma once

#include <string>
#include <vector>

#include "fabricmgr/model/types.h"

namespace tidepool::fabric {

enum class Shape : uint8_t {
  kPack = 0,    // as few devices as can be, and such as leave the largest rooms whole
  kSpread = 1,  // as many as can be, in different failure domains first
};

enum class Contiguity : uint8_t { kAny = 0, kContiguous = 1 };

struct Constraints {
  Contiguity contiguity = Contiguity::kAny;
  uint32_t max_devices = 0;  // 0: any number
  Shape shape = Shape::kPack;
  std::vector<std::string> avoid_domains;
};

struct PlacementRequest {
  Bytes size;  // rounded up to the devices' granularity
  MemoryClass memory_class = MemoryClass::kAny;
  PoolId pool;  // 0: any pool of the class
  HostId host;  // matters to devices with a limited number of heads
  Constraints constraints;
};

/// Extents by device, in the order in which the host will see them, and the state they were chosen
/// from: applying it is refused if a device of it has changed since.
struct Plan {
  Index index;
  std::vector<Extent> extents;
};

}  // namespace tidepool::fabric
