// SPDX-License-Identifier: Apache-2.0
// InternalHeap against a model: live blocks never overlap, keep their bytes, are aligned and within
// the heap; memory freed is used again; several threads at once.
#include "shim/internal_heap.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

struct Live {
  std::byte* block;
  size_t size;
  std::byte pattern;
};

bool holds(const Live& live) {
  for (size_t i = 0; i < live.size; ++i) {
    if (live.block[i] != live.pattern) return false;
  }
  return true;
}

bool overlaps(const std::map<std::byte*, size_t>& blocks, std::byte* block, size_t size) {
  const auto next = blocks.lower_bound(block);
  if (next != blocks.end() && next->first < block + size) return true;
  return next != blocks.begin() && std::prev(next)->first + std::prev(next)->second > block;
}

/// Pages of the 64 KiB from `start` that hold memory.
long residentPages(const std::byte* start) {
  std::array<unsigned char, 16> resident{};
  const auto page = reinterpret_cast<uintptr_t>(start) & ~uintptr_t{4095};
  EXPECT_EQ(mincore(reinterpret_cast<void*>(page), resident.size() * 4096, resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](int byte) { return (byte & 1) != 0; });
}

TEST(InternalHeap, TakesNoMoreMemoryThanIsGivenOut) {
  InternalHeap heap;
  auto* first = static_cast<std::byte*>(heap.allocate(64));
  *first = std::byte{1};
  EXPECT_EQ(residentPages(first), 1);
  for (int i = 1; i < 64 * 3; ++i) *static_cast<std::byte*>(heap.allocate(64)) = std::byte{1};
  EXPECT_EQ(residentPages(first), 3);
}

RC_GTEST_PROP(InternalHeap, KeepsBlocksApartAndIntact, ()) {
  InternalHeap heap;
  std::vector<Live> live;
  std::map<std::byte*, size_t> blocks;
  const int steps = *rc::gen::inRange(1, 400);
  for (int step = 0; step < steps; ++step) {
    if (!live.empty() && *rc::gen::inRange(0, 3) == 0) {
      const size_t victim = *rc::gen::inRange<size_t>(0, live.size());
      RC_ASSERT(holds(live[victim]));
      heap.release(live[victim].block);
      blocks.erase(live[victim].block);
      live[victim] = live.back();
      live.pop_back();
      continue;
    }
    const size_t size =
        *rc::gen::oneOf(rc::gen::inRange<size_t>(0, 300), rc::gen::inRange<size_t>(0, 20000),
                        rc::gen::inRange<size_t>(0, 400000));
    const size_t alignment = size_t{1} << *rc::gen::inRange(4, 20);
    auto* block = static_cast<std::byte*>(heap.allocate(size, alignment));
    RC_ASSERT(block != nullptr);
    RC_ASSERT(reinterpret_cast<uintptr_t>(block) % alignment == 0u);
    RC_ASSERT(heap.contains(block));
    const size_t usable = heap.usableSize(block);
    RC_ASSERT(usable >= size);
    RC_ASSERT(!overlaps(blocks, block, usable));
    const auto pattern = static_cast<std::byte>(step);
    memset(block, step & 255, usable);
    live.push_back({block, usable, pattern});
    blocks[block] = usable;
  }
  for (const Live& one : live) RC_ASSERT(holds(one));
}

TEST(InternalHeap, EverySizeHasAClassThatFits) {
  InternalHeap heap;
  for (size_t size = 0; size <= 70000; ++size) {
    void* block = heap.allocate(size);
    ASSERT_NE(block, nullptr);
    const size_t usable = heap.usableSize(block);
    ASSERT_GE(usable, size);
    // Waste stays under a quarter, but for the smallest and for blocks of whole chunks.
    if (size > 64 && size <= 16384) {
      ASSERT_LE(usable, size + size / 4 + 16);
    }
    heap.release(block);
  }
}

TEST(InternalHeap, ReusesWhatIsFreed) {
  InternalHeap heap;
  const void* first = heap.allocate(1 << 20);
  heap.release(const_cast<void*>(first));
  for (int i = 0; i < 10000; ++i) {
    void* block = heap.allocate(1 << 20);
    EXPECT_EQ(block, first);
    heap.release(block);
  }
}

TEST(InternalHeap, ZeroedBlocksAreZeroAfterReuse) {
  InternalHeap heap;
  for (const size_t size : {10u, 5000u, 100000u, 1000000u}) {
    void* block = heap.allocate(size);
    memset(block, 255, size);
    heap.release(block);
    auto* zeroed = static_cast<std::byte*>(heap.allocateZeroed(size));
    EXPECT_TRUE(holds({zeroed, size, std::byte{0}}));
    heap.release(zeroed);
  }
}

TEST(InternalHeap, RefusesWhatCannotBe) {
  InternalHeap heap;
  EXPECT_EQ(heap.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(heap.allocate(SIZE_MAX / 2), nullptr);
  EXPECT_EQ(heap.allocate(10, size_t{1} << 60), nullptr);
  EXPECT_NE(heap.allocate(10), nullptr);
  int local;
  EXPECT_FALSE(heap.contains(&local));
  EXPECT_FALSE(heap.contains(nullptr));
}

TEST(InternalHeap, ContainsNothingBeforeTheFirstBlock) {
  InternalHeap heap;
  EXPECT_FALSE(heap.contains(nullptr));
  EXPECT_FALSE(heap.contains(&heap));
}

TEST(InternalHeapDeathTest, StrayPointersAreBrokenInvariants) {
  auto heap = std::make_unique<InternalHeap>();
  auto* large = static_cast<std::byte*>(heap->allocate(1 << 20));
  EXPECT_DEATH(heap->release(large + 65536), "broken invariant");
  EXPECT_DEATH(heap->release(&heap), "broken invariant");
}

TEST(InternalHeap, ThreadsShareIt) {
  InternalHeap heap;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&heap, number] {
      std::vector<Live> live;
      for (size_t i = 0; i < 20000; ++i) {
        const size_t size = 1 + i * 2654435761u % (i % 100 == 0 ? 100000 : 1000);
        auto* block = static_cast<std::byte*>(heap.allocate(size));
        memset(block, number, size);
        live.push_back({block, size, static_cast<std::byte>(number)});
        if (live.size() > 50) {
          EXPECT_TRUE(holds(live[i % 50]));
          heap.release(live[i % 50].block);
          live[i % 50] = live.back();
          live.pop_back();
        }
      }
      for (const Live& one : live) heap.release(one.block);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace tidepool
