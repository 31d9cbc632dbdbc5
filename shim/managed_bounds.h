// SPDX-License-Identifier: Apache-2.0
// The managed range, cached in two words for free()'s fast path. Set once, before any thread is
// bound. Empty: nothing is managed.
#pragma once

#include <cstdint>

namespace tidepool {

struct ManagedBounds {
  uintptr_t base = 0;
  uintptr_t size = 0;
};
inline constinit ManagedBounds managed_bounds;

inline bool isManaged(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - managed_bounds.base < managed_bounds.size;
}

}  // namespace tidepool
