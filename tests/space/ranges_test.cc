// SPDX-License-Identifier: Apache-2.0
// RangeAllocator and AddressMap against plain models of a value a page.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/space/address_map.h"
#include "runtime/space/range_allocator.h"

namespace tidepool {
namespace {

constexpr uint64_t kPages = 256;

Bytes pages(uint64_t count) { return Bytes(count * kPageSize); }

/// One flag a page: true if it is handed out.
class Model {
 public:
  bool all(uint64_t first, uint64_t count, bool value) const {
    return std::all_of(taken_.begin() + first, taken_.begin() + first + count,
                       [value](bool taken) { return taken == value; });
  }
  void set(uint64_t first, uint64_t count, bool value) {
    std::fill(taken_.begin() + first, taken_.begin() + first + count, value);
  }
  uint64_t count() const { return std::count(taken_.begin(), taken_.end(), true); }
  bool hasRoom(uint64_t count, uint64_t alignment, uint64_t from = 0, uint64_t to = kPages) const {
    for (uint64_t at = from; at + count <= to; at += alignment) {
      if (all(at, count, false)) return true;
    }
    return false;
  }

 private:
  std::vector<bool> taken_ = std::vector<bool>(kPages, false);
};

constexpr uint64_t kHeapFrom = 128;  // pages, a multiple of all alignments below

void allocateAnywhere(RangeAllocator& ranges, Model& model) {
  const uint64_t count = *rc::gen::inRange<uint64_t>(1, kPages / 2);
  const uint64_t alignment = uint64_t{1} << *rc::gen::inRange(0, 7);
  const bool heap = *rc::gen::arbitrary<bool>();
  const uint64_t from = heap ? kHeapFrom : 0, to = heap ? kPages : kHeapFrom;
  const bool room_there = model.hasRoom(count, alignment, from, to);
  const auto offset =
      ranges.allocate(pages(count), pages(alignment), heap ? RangeUse::kHeap : RangeUse::kMapping);
  RC_ASSERT(offset.has_value() == model.hasRoom(count, alignment));
  if (!offset) return;
  const uint64_t first = *offset / kPageSize;
  RC_ASSERT(first % alignment == 0u);
  RC_ASSERT(first + count <= kPages);
  if (room_there) RC_ASSERT(first >= from && first + count <= to);
  RC_ASSERT(model.all(first, count, false));
  model.set(first, count, true);
}

TEST(RangeAllocator, BehavesAsItsModel) {
  EXPECT_TRUE(rc::check([] {
    RangeAllocator ranges(pages(kPages),
                          {.heap = kHeapFrom * kPageSize, .heap_end = kPages * kPageSize});
    Model model;
    const int steps = *rc::gen::inRange(1, 60);
    for (int step = 0; step < steps; ++step) {
      const uint64_t first = *rc::gen::inRange<uint64_t>(0, kPages);
      const uint64_t count = *rc::gen::inRange<uint64_t>(1, kPages - first + 1);
      switch (*rc::gen::inRange(0, 3)) {
        case 0:
          allocateAnywhere(ranges, model);
          break;
        case 1: {
          const bool took = ranges.allocateAt(first * kPageSize, pages(count));
          RC_ASSERT(took == model.all(first, count, false));
          if (took) model.set(first, count, true);
          break;
        }
        default:
          // Any part of what is allocated may go, across what were several allocations.
          if (!model.all(first, count, true)) break;
          ranges.release(first * kPageSize, pages(count));
          model.set(first, count, false);
      }
      RC_ASSERT(ranges.isAllocated(first * kPageSize, pages(count)) ==
                model.all(first, count, true));
      RC_ASSERT(ranges.allocated() == pages(model.count()));
    }
  }));
}

TEST(RangeAllocator, FreedNeighboursMergeWhateverTheOrder) {
  EXPECT_TRUE(rc::check([] {
    RangeAllocator ranges(pages(64));
    std::vector<uint64_t> order;
    for (uint64_t i = 0; i < 64; ++i) order.push_back(*ranges.allocate(pages(1), pages(1)));
    std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
    std::shuffle(order.begin(), order.end(), random);
    for (const uint64_t offset : order) ranges.release(offset, pages(1));
    RC_ASSERT(ranges.allocate(pages(64), pages(64)) == 0u);
  }));
}

TEST(RangeAllocator, HostileSizesDoNotOverflow) {
  RangeAllocator ranges(pages(kPages));
  const uint64_t start = *ranges.allocate(pages(2), pages(1));
  EXPECT_EQ(start, 0u);
  // Offset plus size wraps around to a small number.
  EXPECT_FALSE(ranges.allocateAt(2 * kPageSize, Bytes(~uint64_t{0} - kPageSize + 1)));
  EXPECT_FALSE(ranges.allocateAt(kPages * kPageSize, pages(1)));
  EXPECT_FALSE(ranges.allocate(Bytes(~uint64_t{0} - kPageSize + 1), pages(1)));
  EXPECT_FALSE(ranges.allocate(pages(1), Bytes(uint64_t{1} << 63)));
  EXPECT_EQ(ranges.allocated(), pages(2));
}

TEST(RangeAllocator, AlignsAddressesAndLeavesTheLowPart) {
  // The base is aligned to less than is asked for.
  constexpr uint64_t kBase = 3 * 16 * kPageSize;
  RangeAllocator ranges(pages(256), {kBase, 40 * kPageSize});
  const uint64_t aligned = *ranges.allocate(pages(2), pages(64));
  EXPECT_EQ((kBase + aligned) % (64 * kPageSize), 0u);
  for (int i = 0; i < 8; ++i) EXPECT_GE(*ranges.allocate(pages(16), pages(1)), 40 * kPageSize);
  // Only who names it gets it, and nobody else once it is free again.
  EXPECT_TRUE(ranges.allocateAt(8 * kPageSize, pages(32)));
  ranges.release(8 * kPageSize, pages(32));
  EXPECT_EQ(*ranges.allocate(pages(1), pages(1)) / kPageSize >= 40, true);
  EXPECT_FALSE(ranges.allocate(pages(200), pages(1)));
}

TEST(RangeAllocator, TakesTheTightestFit) {
  RangeAllocator ranges(pages(64));
  ASSERT_EQ(*ranges.allocate(pages(64), pages(1)), 0u);
  ranges.release(0, pages(10));
  ranges.release(20 * kPageSize, pages(4));
  ranges.release(40 * kPageSize, pages(5));
  EXPECT_EQ(*ranges.allocate(pages(4), pages(1)), 20 * kPageSize);
  EXPECT_EQ(*ranges.allocate(pages(4), pages(1)), 40 * kPageSize);
}

TEST(RangeAllocator, ReleasingWhatIsFreeAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  RangeAllocator ranges(pages(16));
  ASSERT_TRUE(ranges.allocateAt(0, pages(8)));
  EXPECT_DEATH(ranges.release(4 * kPageSize, pages(8)), "broken invariant");
}

TEST(RangeAllocator, ThreadsNeverShareAPage) {
  RangeAllocator ranges(pages(4096));
  std::vector<std::atomic<int>> owner(4096);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      for (int round = 0; round < 3000; ++round) {
        const uint64_t count = 1 + random() % 300;
        const auto offset = ranges.allocate(pages(count), pages(1));
        if (!offset) continue;
        for (uint64_t i = 0; i < count; ++i) wrong += owner[*offset / kPageSize + i].fetch_add(1);
        for (uint64_t i = 0; i < count; ++i) owner[*offset / kPageSize + i].fetch_sub(1);
        ranges.release(*offset, pages(count));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(ranges.allocated(), Bytes());
}

TEST(AddressMap, HasTheRightsOfItsModelWhateverIsMarked) {
  EXPECT_TRUE(rc::check([] {
    constexpr uintptr_t kBase = uintptr_t{1} << 32;
    AddressMap map;
    std::vector<int> model(kPages, PROT_READ | PROT_WRITE);
    const int steps = *rc::gen::inRange(1, 60);
    for (int step = 0; step < steps; ++step) {
      const uint64_t first = *rc::gen::inRange<uint64_t>(0, kPages);
      const uint64_t count = *rc::gen::inRange<uint64_t>(1, kPages - first + 1);
      const int protection = *rc::gen::element(PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE,
                                               kNotHandedOut, kNotReserved, kSurrendered);
      const auto accessible = [&model] {
        return std::count_if(model.begin(), model.end(), [](int each) { return each > PROT_NONE; });
      };
      *rc::gen::arbitrary<bool>()
          ? map.mark(Mark::kUndumped, kBase + step * kPageSize, pages(count))
          : map.unmark(Mark::kUndumped, kBase, pages(count));
      const int64_t before = accessible();
      const int64_t grown = map.protect(kBase + first * kPageSize, pages(count), protection);
      const auto changed = model.begin() + static_cast<long>(first);
      std::replace_if(
          changed, changed + static_cast<long>(count),
          [](int each) { return each != kSurrendered; }, protection);
      RC_ASSERT(grown == (accessible() - before) * static_cast<int64_t>(kPageSize));
      for (uint64_t page = 0; page < kPages; ++page) {
        RC_ASSERT(map.rightsAt(kBase + page * kPageSize) == rightsOf(model[page]));
      }
      const uint64_t from = *rc::gen::inRange<uint64_t>(0, kPages);
      const uint64_t length = *rc::gen::inRange<uint64_t>(1, kPages - from + 1);
      const auto part = model.begin() + static_cast<long>(from);
      RC_ASSERT(map.plain(kBase + from * kPageSize, pages(length)) ==
                std::all_of(part, part + static_cast<long>(length),
                            [](int each) { return each == (PROT_READ | PROT_WRITE); }));
      const ProtectionSpan span = map.spanAt(kBase + from * kPageSize, pages(length));
      RC_ASSERT(span.size.value() > 0 && span.size <= pages(length));
      const auto end = part + static_cast<long>(span.size.value() / kPageSize);
      RC_ASSERT(std::all_of(part, end, [&](int each) { return each == span.protection; }));
      // Worked out before: RC_ASSERT looks at both sides.
      const bool longest = span.size == pages(length) || *end != span.protection;
      RC_ASSERT(longest);
      uint64_t low = from, high = from;
      while (low > 0 && model[low - 1] == model[from]) --low;
      while (high < kPages && model[high] == model[from]) ++high;
      const ProtectionStretch stretch =
          map.stretchAround(kBase + from * kPageSize, kBase, kBase + kPages * kPageSize);
      RC_ASSERT(stretch.protection == model[from]);
      RC_ASSERT(stretch.start == kBase + low * kPageSize);
      RC_ASSERT(stretch.end == kBase + high * kPageSize);
      const OwnerSpan owned = map.ownerAt(kBase + from * kPageSize, pages(kPages - from));
      uint64_t owned_end = from;
      while (owned_end < kPages && ownerOf(model[owned_end]) == owned.owner) ++owned_end;
      RC_ASSERT(owned.owner == ownerOf(model[from]));
      RC_ASSERT(owned.size == pages(owned_end - from));
      if (*rc::gen::inRange(0, 4) != 0) continue;
      map.endSurrender(kBase + first * kPageSize, pages(count));
      std::replace(changed, changed + static_cast<long>(count), kSurrendered, kNotHandedOut);
    }
  }));
}

TEST(AddressMap, HasTheMarksOfItsModelWhateverTheRights) {
  EXPECT_TRUE(rc::check([] {
    constexpr uintptr_t kBase = uintptr_t{1} << 32;
    constexpr std::array kMarks = {Mark::kUnforked, Mark::kUndumped};
    AddressMap map;
    std::array<std::bitset<kPages>, kMarks.size()> model;
    const int steps = *rc::gen::inRange(1, 60);
    for (int step = 0; step < steps; ++step) {
      const uint64_t first = *rc::gen::inRange<uint64_t>(0, kPages);
      const uint64_t count = *rc::gen::inRange<uint64_t>(1, kPages - first + 1);
      const auto which = *rc::gen::inRange<size_t>(0, kMarks.size());
      const bool marks = *rc::gen::arbitrary<bool>();
      const uintptr_t start = kBase + first * kPageSize;
      marks ? map.mark(kMarks[which], start, pages(count))
            : map.unmark(kMarks[which], start, pages(count));
      for (uint64_t page = first; page < first + count; ++page) model[which][page] = marks;
      map.protect(start, pages(1), *rc::gen::element(PROT_READ | PROT_WRITE, PROT_READ));
      for (size_t i = 0; i < kMarks.size(); ++i) {
        RC_ASSERT(map.none(kMarks[i]) == model[i].none());
        const uint64_t from = *rc::gen::inRange<uint64_t>(0, kPages);
        uint64_t end = from;
        while (end < kPages && model[i][end] == model[i][from]) ++end;
        const RangeSpan span =
            map.markedAt(kMarks[i], kBase + from * kPageSize, pages(kPages - from));
        RC_ASSERT(span.inside == model[i][from]);
        RC_ASSERT(span.size == pages(end - from));
      }
    }
  }));
}

TEST(AddressMap, WhatIsSurrenderedIsTheKernelsWhateverItsRightsAreSaidToBe) {
  for (const int protection : {kNotHandedOut, kNotReserved, kSurrendered}) {
    EXPECT_EQ(rightsOf(protection), Rights::kOther);
  }
  EXPECT_EQ(ownerOf(PROT_NONE), Owner::kRuntime);
  EXPECT_EQ(ownerOf(kNotHandedOut), Owner::kNobody);
  EXPECT_EQ(ownerOf(kNotReserved), Owner::kKernel);
  AddressMap map;
  EXPECT_EQ(map.protect(20, Bytes(10), kSurrendered), -10);
  EXPECT_EQ(map.protect(28, Bytes(12), kSurrendered), -10);
  EXPECT_EQ(map.protect(0, Bytes(100), PROT_READ), 0);
  EXPECT_EQ(map.protect(0, Bytes(100), kNotHandedOut), -80);
  EXPECT_EQ(map.ownerAt(10, Bytes(90)).owner, Owner::kNobody);
  EXPECT_EQ(map.ownerAt(10, Bytes(90)).size, Bytes(10));
  EXPECT_EQ(map.ownerAt(25, Bytes(90)).owner, Owner::kKernel);
  EXPECT_EQ(map.ownerAt(25, Bytes(90)).size, Bytes(15));
  map.endSurrender(0, Bytes(100));
  EXPECT_EQ(map.ownerAt(0, Bytes(100)).size, Bytes(100));
}

TEST(AddressMap, TellsWhatIsNotTheKernelsInTheLongestPieces) {
  AddressMap map;
  map.protect(20, Bytes(10), kSurrendered);
  map.protect(30, Bytes(10), kNotReserved);
  map.protect(50, Bytes(5), PROT_NONE);
  using Own = std::vector<std::pair<uintptr_t, Bytes>>;
  Own own;
  const auto note = [&](uintptr_t start, Bytes size) -> Status {
    own.emplace_back(start, size);
    return own.size() < 2 ? Status() : fail(ErrorCode::kNoMemory, "two are enough");
  };
  EXPECT_TRUE(map.forEachOwn(25, 60, note));
  EXPECT_EQ(own, Own({{40, Bytes(20)}}));
  EXPECT_FALSE(map.forEachOwn(5, 60, note)) << "the second failed";
  EXPECT_EQ(own, Own({{40, Bytes(20)}, {5, Bytes(15)}}));
}

TEST(AddressMap, MarkedRangesAreTakenOutOneByOne) {
  AddressMap map;
  EXPECT_EQ(map.takeLowest(Mark::kUndumped).second, Bytes());
  map.unmark(Mark::kUndumped, 0, Bytes(100));
  map.mark(Mark::kUndumped, 50, Bytes(10));
  map.mark(Mark::kUndumped, 10, Bytes(10));
  map.unmark(Mark::kUndumped, 14, Bytes(2));
  EXPECT_TRUE(map.markedAt(Mark::kUndumped, 13, Bytes(1)).inside);
  EXPECT_FALSE(map.markedAt(Mark::kUndumped, 14, Bytes(1)).inside);
  EXPECT_EQ(map.takeLowest(Mark::kUndumped), std::pair(uintptr_t{10}, Bytes(4)));
  EXPECT_EQ(map.takeLowest(Mark::kUndumped), std::pair(uintptr_t{16}, Bytes(4)));
  EXPECT_EQ(map.takeLowest(Mark::kUndumped), std::pair(uintptr_t{50}, Bytes(10)));
  EXPECT_EQ(map.takeLowest(Mark::kUndumped).second, Bytes());
  EXPECT_FALSE(map.markedAt(Mark::kUndumped, 50, Bytes(1)).inside);
}

}  // namespace
}  // namespace tidepool
