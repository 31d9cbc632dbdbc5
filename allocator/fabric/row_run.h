// SPDX-License-Identifier: Apache-2.0
// Adjacent memory for rows: frames of a region of the fabric, or local memory that rows of a
// drained region went to. Gives back what it has. Made and used under the pool's rules
// (fabric_pool.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/mapping.h"
#include "runtime/tier/row_channel.h"
#include "runtime/tier/tier.h"

namespace tidepool {

class FabricPool;
struct FabricRegion;

struct RowRun {
  RowRun() = default;
  RowRun(const RowRun&) = delete;
  RowRun& operator=(const RowRun&) = delete;
  ~RowRun();

  FabricPool* pool = nullptr;
  FabricRegion* region = nullptr;  // null: local memory
  Tier* tier = nullptr;            // of the region; null: local memory
  FrameRun frames{};
  Bytes size;
  std::byte* memory = nullptr;  // null: on a memory server
  Mapping local;
};

/// Units of a home, granules or rows, and where they are: from the run's unit `at` on.
struct RowPart {
  uint64_t first = 0, end = 0;
  uint64_t at = 0;
  RowRun* run = nullptr;  // of the runs that the rows have
};

}  // namespace tidepool
