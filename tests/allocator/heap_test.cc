// SPDX-License-Identifier: Apache-2.0
// Heaps against a model: whatever threads allocate, resize and free under a budget of a few MiB,
// blocks do not overlap, keep their bytes, and all memory is given back in the end.
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/allocator/fixture.h"

namespace tidepool {
namespace {

struct Block {
  unsigned char* bytes;
  size_t size;
  unsigned char fill;

  void write() { memset(bytes, fill, size); }
  bool intact(size_t count) const {
    for (size_t i = 0; i < count; i += 61) {
      if (bytes[i] != fill) return false;
    }
    return count == 0 || bytes[count - 1] == fill;
  }
};

size_t someSize(std::mt19937_64& random) {
  switch (random() % 16) {
    case 0:
      return random() % (3 * kMiB);
    case 1:
    case 2:
    case 3:
      return random() % (64 * kKiB);
    default:
      return random() % 600;
  }
}

class HeapOf : public testing::TestWithParam<FarMemory> {};

/// One thread's life with a heap; what it leaves behind goes to `left`.
void live(tidepool_heap* heap, uint64_t seed, int steps, std::vector<Block>* left,
          std::mutex* mutex) {
  std::mt19937_64 random(seed);
  std::vector<Block> blocks;
  for (int step = 0; step < steps; ++step) {
    const uint64_t pick = random() % 8;
    if (blocks.size() < 40 || pick < 3) {
      const size_t size = someSize(random);
      const auto fill = static_cast<unsigned char>(1 + random() % 255);
      void* bytes = nullptr;
      if (pick == 0) {
        bytes = tidepool_calloc(heap, 1, size);
        ASSERT_NE(bytes, nullptr) << tidepool_error_text();
        const Block zero{static_cast<unsigned char*>(bytes), size, 0};
        ASSERT_TRUE(zero.intact(size));
      } else if (pick == 1) {
        const size_t alignment = size_t{16} << random() % 10;
        bytes = tidepool_aligned_alloc(heap, alignment, size);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(bytes) % alignment, 0u);
      } else {
        bytes = tidepool_alloc(heap, size);
      }
      ASSERT_NE(bytes, nullptr) << tidepool_error_text();
      ASSERT_EQ(reinterpret_cast<uintptr_t>(bytes) % 16, 0u);
      ASSERT_GE(tidepool_usable_size(heap, bytes), size);
      blocks.push_back({static_cast<unsigned char*>(bytes), size, fill});
      blocks.back().write();
      continue;
    }
    Block& block = blocks[random() % blocks.size()];
    ASSERT_TRUE(block.intact(block.size));
    if (pick < 5) {
      const size_t size = someSize(random);
      auto* moved = static_cast<unsigned char*>(tidepool_realloc(heap, block.bytes, size));
      ASSERT_NE(moved, nullptr) << tidepool_error_text();
      block.bytes = moved;
      ASSERT_TRUE(block.intact(std::min(size, block.size)));
      block.size = size;
      block.write();
    } else {
      ASSERT_EQ(tidepool_free(heap, block.bytes), TIDEPOOL_OK) << tidepool_error_text();
      block = blocks.back();
      blocks.pop_back();
    }
  }
  const std::lock_guard lock(*mutex);
  left->insert(left->end(), blocks.begin(), blocks.end());
}

TEST_P(HeapOf, KeepsTheBytesOfEveryBlock) {
  TestContext test = TestContext::open(GetParam(), Bytes(12 * kMiB), Bytes(512 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  std::vector<Block> left;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] { live(heap, 20261122 + thread, 500, &left, &mutex); });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t bytes = 0;
  for (const Block& block : left) {
    EXPECT_TRUE(block.intact(block.size));
    bytes += tidepool_usable_size(heap, block.bytes);
  }
  const tidepool_heap_stats stats = statsOf(heap);
  EXPECT_EQ(stats.allocations - stats.frees, left.size());
  EXPECT_EQ(stats.allocated_bytes, bytes);
  uint64_t resident = stats.local_bytes + stats.lost_bytes;
  for (const uint64_t far : stats.far_bytes) resident += far;
  EXPECT_GT(resident, bytes / 2) << "its pages must be somewhere";
  // Blocks are freed by a thread that allocated none of them.
  for (const Block& block : left) EXPECT_EQ(tidepool_free(heap, block.bytes), TIDEPOOL_OK);
  EXPECT_EQ(statsOf(heap).allocated_bytes, 0u);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

TEST_P(HeapOf, GoesFarWhenItIsLargerThanTheBudget) {
  if (GetParam() == FarMemory::kNone) return;
  TestContext test = TestContext::open(GetParam(), Bytes(8 * kMiB), Bytes(256 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  auto* words = static_cast<uint64_t*>(tidepool_alloc(heap, 64 * kMiB));
  ASSERT_NE(words, nullptr) << tidepool_error_text();
  constexpr uint64_t kWords = 64 * kMiB / 8;
  for (uint64_t i = 0; i < kWords; i += 64) words[i] = i;
  const tidepool_heap_stats stats = statsOf(heap);
  uint64_t far = 0;
  for (const uint64_t bytes : stats.far_bytes) far += bytes;
  EXPECT_GT(far, 40 * kMiB);
  EXPECT_LT(stats.local_bytes, 24 * kMiB);
  for (uint64_t i = 0; i < kWords; i += 64) ASSERT_EQ(words[i], i);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

uint64_t managedBytes(tidepool_context* context) {
  static char text[65536];
  EXPECT_EQ(tidepool_stats_json(context, text, sizeof text, nullptr), TIDEPOOL_OK);
  const char* const field = strstr(text, "\"managed_bytes\":");
  return field != nullptr ? strtoull(field + 16, nullptr, 10) : ~0ull;
}

TEST_P(HeapOf, DestroyingItFreesEverything) {
  TestContext test = TestContext::open(GetParam(), Bytes(16 * kMiB), Bytes(256 * kMiB));
  tidepool_heap* const other = test.makeHeap();
  auto* const kept = static_cast<char*>(tidepool_alloc(other, 100));
  strcpy(kept, "kept");
  const uint64_t before = managedBytes(test.context);
  for (int round = 0; round < 6; ++round) {
    tidepool_heap* const heap = test.makeHeap();
    std::thread([&] {
      // Also what another thread has in its cache, which outlives it or not.
      for (int i = 0; i < 2000; ++i) memset(tidepool_alloc(heap, 64), 1, 64);
    }).join();
    for (int i = 0; i < 8; ++i) memset(tidepool_alloc(heap, kMiB), 2, kMiB);
    memset(tidepool_alloc(heap, 10 * kMiB), 3, 10 * kMiB);
    EXPECT_GT(managedBytes(test.context), before);
    ASSERT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK) << tidepool_error_text();
    EXPECT_EQ(managedBytes(test.context), before);
  }
  EXPECT_STREQ(kept, "kept");
  EXPECT_EQ(tidepool_heap_destroy(other), TIDEPOOL_OK);
}

TEST_P(HeapOf, LargeBlocksAreGivenBackWhenTheyAreFreed) {
  TestContext test = TestContext::open(GetParam(), Bytes(16 * kMiB), Bytes(256 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  for (int round = 0; round < 20; ++round) {
    void* const block = tidepool_alloc(heap, 24 * kMiB);
    ASSERT_NE(block, nullptr) << tidepool_error_text();
    memset(block, round, 24 * kMiB);
    ASSERT_EQ(tidepool_free(heap, block), TIDEPOOL_OK);
    const tidepool_heap_stats stats = statsOf(heap);
    uint64_t held = stats.local_bytes;
    for (const uint64_t far : stats.far_bytes) held += far;
    EXPECT_LT(held, 4 * kMiB);
  }
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

TEST_P(HeapOf, ThreadsMayComeAndGo) {
  TestContext test = TestContext::open(GetParam(), Bytes(16 * kMiB), Bytes(128 * kMiB));
  tidepool_heap* const heap = test.makeHeap();
  std::vector<void*> blocks(400);
  for (int wave = 0; wave < 50; ++wave) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, at = static_cast<size_t>(wave * 8 + thread)] {
        for (int i = 0; i < 50; ++i) tidepool_free(heap, tidepool_alloc(heap, 1000));
        blocks[at] = tidepool_alloc(heap, at + 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(statsOf(heap).allocations - statsOf(heap).frees, blocks.size());
  for (void* block : blocks) EXPECT_EQ(tidepool_free(heap, block), TIDEPOOL_OK);
  EXPECT_EQ(statsOf(heap).allocated_bytes, 0u);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

INSTANTIATE_TEST_SUITE_P(Memory, HeapOf,
                         testing::Values(FarMemory::kNone, FarMemory::kCxl, FarMemory::kRemote,
                                         FarMemory::kBoth),
                         farName);

}  // namespace
}  // namespace tidepool
