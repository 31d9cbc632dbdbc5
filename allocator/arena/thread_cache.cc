// SPDX-License-Identifier: Apache-2.0
// The shape of the thread caches, from the budget. Pure. Sizes are bytes.
#include "allocator/arena/thread_cache.h"

#include <algorithm>

namespace tidepool {
namespace {

constexpr size_t kShareOfLocal = 16;
constexpr size_t kLeastLargest = 2 * kLargeBlock;

}  // namespace

size_t bytesASlot(size_t largest) {
  // From one power of two, x, to the next there are four classes: 1.25x, 1.5x, 1.75x and 2x.
  return kLargeBlock + (largest - kLargeBlock) / 2 * 13;
}

ThreadCacheShape threadCacheShape(Bytes local, unsigned cpus) {
  const size_t share = local.value() / kShareOfLocal / std::max(cpus, 1u);
  size_t largest = kLargestCachedBlock;
  while (largest > kLeastLargest && bytesASlot(largest) * kLeastCacheSlots > share) largest /= 2;
  const size_t slots =
      std::clamp<size_t>(share / bytesASlot(largest), kLeastCacheSlots, kMostCacheSlots);
  return {largest, static_cast<unsigned>(slots)};
}

}  // namespace tidepool
