// SPDX-License-Identifier: Apache-2.0
// jemalloc's settings, as the shim's heap and the API's have them. Pure. Sizes are bytes.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/units.h"

namespace tidepool {

/// How much each thread may keep of the larger blocks it frees. A cached block costs tens of
/// nanoseconds to take again, one from the arena hundreds; but what is cached is local memory that
/// does nothing, so the caches are cut to the budget.
struct ThreadCacheShape {
  size_t largest_block;  // larger ones are not cached
  unsigned slots;        // of each size class from kLargeBlock up
};

/// jemalloc's first large class; the caches of smaller ones are small whatever their shape.
inline constexpr size_t kLargeBlock = 16 * kKiB;
inline constexpr size_t kLargestCachedBlock = 1 * kMiB;
inline constexpr unsigned kLeastCacheSlots = 8;
inline constexpr unsigned kMostCacheSlots = 64;

/// The most that a cache of one slot a class can hold. `largest` is a power of two.
size_t bytesASlot(size_t largest);

/// For a process with `local` bytes of local memory and `cpus` processors. Full caches of as many
/// threads hold at most a sixteenth of it, unless the least shape holds more.
ThreadCacheShape threadCacheShape(Bytes local, unsigned cpus);

/// Whether memory that is free could be somebody else's: there are far tiers to keep it in.
enum class FreeMemory : uint8_t { kIsWanted, kIsNot };

inline constexpr size_t kArenaSettingsCapacity = 512;

/// Writes what jemalloc's malloc_conf variable is to hold, NUL-terminated.
void writeArenaSettings(std::span<char, kArenaSettingsCapacity> out, ThreadCacheShape cache,
                        FreeMemory free);

}  // namespace tidepool
