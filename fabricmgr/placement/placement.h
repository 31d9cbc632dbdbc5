// SPDX-License-Identifier: Apache-2.0
// Chooses the extents of a new region. Pure: no clock, no I/O, no state; the same rooms and request
// give the same plan. Costs the devices that are looked at plus the extents of the plan.
#pragma once

#include <span>

#include "fabricmgr/model/types.h"
#include "fabricmgr/placement/free_map.h"
#include "fabricmgr/placement/request.h"
#include "runtime/base/result.h"

namespace tidepool::fabric {

/// Why a device may have room and still gets nothing.
enum class Obstacle : uint8_t { kNone = 0, kCordoned = 1, kUnreachable = 2, kNoHead = 3 };

/// One device of the snapshot. Borrowed for the call.
struct DeviceRoom {
  const Device* device = nullptr;
  const FreeMap* free = nullptr;
  Obstacle obstacle = Obstacle::kNone;
};

/// A plan without its index. It is found if there is one:
///   contiguous  one device with a run that is long enough: the tightest;
///   pack        the tightest device that holds all, else the fewest devices;
///   spread      equal shares on as many devices as are allowed, of different domains first.
/// Errors: kInvalidArgument (size 0 or beyond 2^62, too many domains), kNoSpace: what there is, and
/// what would do.
Result<std::vector<Extent>> place(std::span<const DeviceRoom> rooms,
                                  const PlacementRequest& request);

/// Whether the device is of the class, pool and domains that are asked for.
bool suits(const Device& device, const PlacementRequest& request);

}  // namespace tidepool::fabric
