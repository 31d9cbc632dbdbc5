// SPDX-License-Identifier: Apache-2.0
// How the rows of a table and the places for hot rows in DRAM are numbered.
#pragma once

#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

/// Row of a table, counted from 0. Of a table with hashed ids: in the order of their first use.
using RowNumber = uint64_t;
/// Place for a hot row in DRAM, counted from the table's first.
using Slot = uint32_t;

/// A row number and a slot fit in one word together: see SlotMap.
inline constexpr unsigned kSlotBits = 28;
inline constexpr Slot kNoSlot = (Slot{1} << kSlotBits) - 1;
/// A table has fewer rows than this, and fewer slots than kNoSlot.
inline constexpr RowNumber kRowLimit = (RowNumber{1} << (64 - kSlotBits)) - 1;

}  // namespace tidepool
