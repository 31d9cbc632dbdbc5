// SPDX-License-Identifier: Apache-2.0
// In a child that cannot have far memory: takes what is not local out of its address space, so that
// a touch ends in SIGSEGV rather than in zeros or in a store to its parent's memory. By the child's
// only thread; allocates nothing, takes no lock.
#pragma once

#include <cstdint>

#include "runtime/migrate/core/core.h"

namespace tidepool {

enum class LocalIf : uint8_t {
  kWordSays,  // the child was copied while nothing moved
  kPresent,   // pages may have been on their way: only what the page table has, too, is whole
};

void hideFarMemory(const Core& core, LocalIf rule);

}  // namespace tidepool
