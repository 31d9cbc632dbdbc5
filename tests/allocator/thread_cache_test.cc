// SPDX-License-Identifier: Apache-2.0
// The shape of thread caches: what full ones can hold stays within its share of the budget, down to
// a least shape, and more memory never makes them smaller.
#include "allocator/arena/settings.h"

#include <gtest/gtest.h>

#include <bit>

namespace tidepool {
namespace {

size_t mostHeld(ThreadCacheShape shape) { return bytesASlot(shape.largest_block) * shape.slots; }

TEST(ThreadCache, OneSlotOfEachClass) {
  // 16 KiB, then 20, 24, 28, 32; then 40, 48, 56, 64.
  EXPECT_EQ(bytesASlot(16 * kKiB), 16 * kKiB);
  EXPECT_EQ(bytesASlot(32 * kKiB), (16 + 104) * kKiB);
  EXPECT_EQ(bytesASlot(64 * kKiB), (16 + 104 + 208) * kKiB);
}

TEST(ThreadCache, FullCachesStayWithinASixteenth) {
  const ThreadCacheShape least = threadCacheShape(Bytes(1), 1);
  for (size_t local = 16 * kMiB; local <= 4 * kTiB; local += local / 3) {
    for (unsigned cpus = 1; cpus <= 1024; cpus *= 2) {
      const ThreadCacheShape shape = threadCacheShape(Bytes(local), cpus);
      EXPECT_TRUE(mostHeld(shape) * cpus <= local / 16 || mostHeld(shape) <= mostHeld(least))
          << local << " bytes, " << cpus << " processors";
      EXPECT_TRUE(std::has_single_bit(shape.largest_block));
      EXPECT_LE(shape.largest_block, kLargestCachedBlock);
      EXPECT_GE(shape.slots, kLeastCacheSlots);
      EXPECT_LE(shape.slots, kMostCacheSlots);
    }
  }
}

TEST(ThreadCache, MoreMemoryNeverCachesSmallerBlocks) {
  size_t before = 0;
  for (size_t local = kMiB; local <= 4 * kTiB; local *= 2) {
    const ThreadCacheShape shape = threadCacheShape(Bytes(local), 4);
    EXPECT_GE(shape.largest_block, before);
    before = shape.largest_block;
  }
  EXPECT_EQ(before, kLargestCachedBlock);
}

TEST(ThreadCache, LeastShapeIsSmall) {
  const ThreadCacheShape shape = threadCacheShape(Bytes(1), 0);
  EXPECT_EQ(shape.largest_block, 32 * kKiB);
  EXPECT_LE(mostHeld(shape), kMiB);
}

}  // namespace
}  // namespace tidepool
