// SPDX-License-Identifier: Apache-2.0
// Trimming: free memory of a heap goes back in every tier, blocks that are in use stay as they are.
#include <cstring>
#include <thread>
#include <vector>

#include "tests/allocator/fixture.h"

namespace tidepool {
namespace {

uint64_t held(tidepool_heap* heap) {
  const tidepool_heap_stats stats = statsOf(heap);
  uint64_t sum = stats.local_bytes;
  for (const uint64_t far : stats.far_bytes) sum += far;
  return sum;
}

class TrimOf : public testing::TestWithParam<FarMemory> {};

TEST_P(TrimOf, GivesBackWhatIsFreeAndNothingElse) {
  TestContext test = TestContext::open(GetParam(), Bytes(16 * kMiB), Bytes(256 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  std::vector<unsigned char*> kept;
  // In threads that end, so that no cache of theirs is left.
  for (int thread = 0; thread < 4; ++thread) {
    std::thread([&] {
      std::vector<void*> freed;
      for (int i = 0; i < 40; ++i) {
        void* const block = tidepool_alloc(heap, 300 * kKiB);
        ASSERT_NE(block, nullptr) << tidepool_error_text();
        memset(block, 1 + i, 300 * kKiB);
        freed.push_back(block);
        if (i % 10 != 0) continue;
        kept.push_back(static_cast<unsigned char*>(tidepool_alloc(heap, 100 * kKiB)));
        memset(kept.back(), 7, 100 * kKiB);
      }
      for (void* block : freed) tidepool_free(heap, block);
    }).join();
  }
  EXPECT_EQ(tidepool_heap_trim(heap), TIDEPOOL_OK);
  // Granules of an emulated pool that blocks still lie in are kept whole.
  const uint64_t most = (GetParam() == FarMemory::kCxl ? 40 : 8) * kMiB;
  EXPECT_LT(held(heap), most);
  for (const unsigned char* block : kept) {
    for (size_t i = 0; i < 100 * kKiB; i += 999) ASSERT_EQ(block[i], 7);
  }
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_heap_trim(heap), TIDEPOOL_CLOSED);
}

INSTANTIATE_TEST_SUITE_P(Memory, TrimOf, testing::Values(FarMemory::kCxl, FarMemory::kRemote),
                         farName);

}  // namespace
}  // namespace tidepool
