// SPDX-License-Identifier: Apache-2.0
// The loop that looks up many rows in a SlotMap, compiled for each kind of processor.
#pragma once

#include <cstddef>

#include "allocator/table/slot_map.h"

namespace tidepool {

using FindSlots = void (*)(SlotMap::View map, const RowNumber* rows, size_t count, Slot* slots);

void findSlotsScalar(SlotMap::View map, const RowNumber* rows, size_t count, Slot* slots);
/// Null where the compiler or the processor cannot.
FindSlots findSlotsAvx2();
FindSlots findSlotsAvx512();
/// The best for this processor; chosen once.
FindSlots findSlots();

}  // namespace tidepool
