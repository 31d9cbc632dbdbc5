// SPDX-License-Identifier: Apache-2.0
// How much each thread may keep of the larger blocks it frees. A cached block costs tens of
// nanoseconds to take again, one from the arena hundreds; but what is cached is local memory that
// does nothing, so the caches are cut to the budget. Pure. Sizes are bytes.
#pragma once

#include <cstddef>

#include "runtime/base/units.h"

namespace tidepool {

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

}  // namespace tidepool
