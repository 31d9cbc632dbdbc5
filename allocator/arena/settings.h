// SPDX-License-Identifier: Apache-2.0
// jemalloc's settings, as the shim's heap and the API's have them. Pure.
#pragma once

#include <span>

#include "allocator/arena/thread_cache.h"
#include "runtime/base/units.h"

namespace tidepool {

/// Whether memory that is free could be somebody else's: there are far tiers to keep it in.
enum class FreeMemory : uint8_t { kIsWanted, kIsNot };

inline constexpr size_t kArenaSettingsCapacity = 512;

/// Writes what jemalloc's malloc_conf variable is to hold, NUL-terminated.
void writeArenaSettings(std::span<char, kArenaSettingsCapacity> out, ThreadCacheShape cache,
                        FreeMemory free);

}  // namespace tidepool
