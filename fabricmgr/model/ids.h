// SPDX-License-Identifier: Apache-2.0
// The strong ids of the fabric manager's things, and the index that counts changes of its state.
// An id is the index at which its thing was made, so it is never given again; 0 is none. Pure
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/base/units.h"

namespace tidepool::fabric {

using PoolId = Ordinal<struct PoolIdTag>;
using DeviceId = Ordinal<struct DeviceIdTag>;
using HostId = Ordinal<struct HostIdTag>;
using RegionId = Ordinal<struct RegionIdTag>;
using OperationId = Ordinal<struct OperationIdTag>;

/// Counts the changes of the whole state: every durable change has one, later is higher. Gaps are
/// possible, after a failure of the store.
using Index = Ordinal<struct IndexTag>;

struct IdHash {
  template <typename Tag>
  size_t operator()(Ordinal<Tag> id) const {
    return std::hash<uint64_t>()(id.value());
  }
};

}  // namespace tidepool::fabric
