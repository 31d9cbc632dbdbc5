// SPDX-License-Identifier: Apache-2.0
// Heaps that say where their memory is to be: pinned to local memory, to a far tier of either kind,
// interleaved. Pages are where the plan says, stay there, and keep their bytes.
#include <cstring>
#include <random>
#include <vector>

#include "allocator/heap/heap_plan.h"
#include "tests/allocator/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kSize = 24 * kMiB;

unsigned char fill(uint64_t page) { return static_cast<unsigned char>(page % 249 + 1); }

/// Fills a block of a heap, and reads it all again, twice.
void fillAndCheck(tidepool_heap* heap, uint64_t size) {
  auto* const bytes = static_cast<unsigned char*>(tidepool_alloc(heap, size));
  ASSERT_NE(bytes, nullptr) << tidepool_error_text();
  for (uint64_t page = 0; page < size / kPageSize; ++page) bytes[page * kPageSize] = fill(page);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t page = 0; page < size / kPageSize; ++page) {
      ASSERT_EQ(bytes[page * kPageSize], fill(page));
    }
  }
}

TEST(Placement, OfALocalHeapIsChargedAndRefusedBeyondTheBudget) {
  TestContext test = TestContext::open(FarMemory::kCxl, Bytes(64 * kMiB), Bytes(128 * kMiB));
  tidepool_heap* const heap = test.makePinned("local");
  EXPECT_EQ(infoOf(test.context).origin, TIDEPOOL_ORIGIN_NONE) << "it needs no runtime";
  fillAndCheck(heap, kSize);
  const uint64_t charged = infoOf(test.context).charged_bytes;
  EXPECT_GE(charged, kSize);
  EXPECT_EQ(statsOf(heap).local_bytes, charged);
  EXPECT_EQ(tidepool_alloc(heap, 64 * kMiB), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_NO_SPACE);
  EXPECT_NE(strstr(tidepool_error_text(), "budget"), nullptr) << tidepool_error_text();
  EXPECT_EQ(infoOf(test.context).charged_bytes, charged);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  EXPECT_EQ(infoOf(test.context).charged_bytes, 0u);
}

TEST(Placement, OfALocalHeapTakesFromWhatManagedPagesMayHave) {
  TestContext test = TestContext::open(FarMemory::kRemote, Bytes(48 * kMiB), Bytes(256 * kMiB));
  tidepool_heap* const tiered = test.makeHeap();
  fillAndCheck(tiered, 40 * kMiB);
  EXPECT_GT(statsOf(tiered).local_bytes, 30 * kMiB);
  tidepool_heap* const local = test.makePinned("local");
  fillAndCheck(local, 32 * kMiB);
  // Within a tick of the migrator's, and what eviction takes.
  while (statsOf(tiered).local_bytes > 20 * kMiB) fillAndCheck(tiered, 64 * kKiB);
  EXPECT_EQ(tidepool_heap_destroy(local), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_heap_destroy(tiered), TIDEPOOL_OK);
}

TEST(Placement, OfADirectTierIsUsedThereThoughLocalMemoryIsFree) {
  TestContext test = TestContext::open(FarMemory::kCxl, Bytes(128 * kMiB), Bytes(64 * kMiB));
  for (const char* name : {"cxl", "1"}) {
    tidepool_heap* const heap = test.makePinned(name);
    fillAndCheck(heap, kSize);
    const tidepool_heap_stats stats = statsOf(heap);
    EXPECT_GE(stats.far_bytes[1], kSize);
    EXPECT_LT(stats.local_bytes, kMiB);
    EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  }
}

TEST(Placement, OfATierThatIsFullGoesWhereThereIsRoom) {
  TestContext test = TestContext::open(FarMemory::kCxl, Bytes(128 * kMiB), Bytes(16 * kMiB));
  tidepool_heap* const heap = test.makePinned("cxl");
  fillAndCheck(heap, 48 * kMiB);
  EXPECT_GE(statsOf(heap).far_bytes[1], 12 * kMiB);
  EXPECT_GE(statsOf(heap).local_bytes, 24 * kMiB);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

TEST(Placement, OfAFetchTierLeavesFirst) {
  TestContext test = TestContext::open(FarMemory::kBoth, Bytes(40 * kMiB), Bytes(128 * kMiB));
  tidepool_heap* const heap = test.makePinned("remote");
  fillAndCheck(heap, 64 * kMiB);
  const tidepool_heap_stats stats = statsOf(heap);
  EXPECT_GE(stats.far_bytes[2], 24 * kMiB);
  EXPECT_EQ(stats.far_bytes[1], 0u) << "not to the other tier";
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

TEST(Placement, TieredPagesLeaveTheHeapsThatAreKeptLocalAlone) {
  TestContext test = TestContext::open(FarMemory::kBoth, Bytes(48 * kMiB), Bytes(256 * kMiB));
  const tidepool_share shares[] = {{"local", 1}, {"remote", 1}, {"cxl", 2}};
  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = TIDEPOOL_INTERLEAVED;
  params.shares = shares;
  params.shares_count = 3;
  tidepool_heap* const heap = test.makeHeap(params);
  fillAndCheck(heap, 32 * kMiB);
  const tidepool_heap_stats before = statsOf(heap);
  EXPECT_NEAR(static_cast<double>(before.far_bytes[1]), 16.0 * kMiB, 4.0 * kMiB);
  tidepool_heap* const other = test.makeHeap();
  fillAndCheck(other, 96 * kMiB);
  const tidepool_heap_stats after = statsOf(heap);
  EXPECT_NEAR(static_cast<double>(after.far_bytes[1]), 16.0 * kMiB, 4.0 * kMiB);
  EXPECT_GE(after.local_bytes, 6 * kMiB);
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_heap_destroy(other), TIDEPOOL_OK);
}

TEST(Placement, PromisesNoMoreLocalMemoryThanThereIs) {
  TestContext test = TestContext::open(FarMemory::kCxl, Bytes(16 * kMiB), Bytes(256 * kMiB));
  const tidepool_share shares[] = {{"local", 1}, {"cxl", 1}};
  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = TIDEPOOL_INTERLEAVED;
  params.shares = shares;
  params.shares_count = 2;
  tidepool_heap* const heap = test.makeHeap(params);
  EXPECT_EQ(tidepool_alloc(heap, 64 * kMiB), nullptr);
  EXPECT_EQ(tidepool_error_status(), TIDEPOOL_NO_SPACE) << tidepool_error_text();
  EXPECT_EQ(statsOf(heap).reserved_bytes, 0u);
  EXPECT_NE(tidepool_alloc(heap, 8 * kMiB), nullptr) << tidepool_error_text();
  EXPECT_EQ(tidepool_heap_destroy(heap), TIDEPOOL_OK);
}

TEST(Placement, RefusesWhatItCannotBe) {
  TestContext test = TestContext::open(FarMemory::kCxl, Bytes(16 * kMiB), Bytes(64 * kMiB));
  const auto refused = [&](tidepool_heap_params params) {
    tidepool_heap* heap = nullptr;
    const tidepool_status status = tidepool_heap_create(test.context, &params, &heap);
    EXPECT_EQ(heap, nullptr);
    return status;
  };
  tidepool_heap_params params = TIDEPOOL_HEAP_PARAMS_INIT;
  params.policy = 7;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  params.policy = TIDEPOOL_PINNED;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  params.tier = "remote";
  EXPECT_EQ(refused(params), TIDEPOOL_NOT_FOUND);
  EXPECT_NE(strstr(tidepool_error_text(), "cxl:"), nullptr) << tidepool_error_text();
  params.tier = "2";
  EXPECT_EQ(refused(params), TIDEPOOL_NOT_FOUND);
  params.policy = TIDEPOOL_INTERLEAVED;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  tidepool_share share = {"cxl", 0};
  params.shares = &share;
  params.shares_count = 1;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  share.weight = 1025;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  params.struct_size = 4;
  EXPECT_EQ(refused(params), TIDEPOOL_INVALID_ARGUMENT);
  EXPECT_EQ(infoOf(test.context).users, 0u);
}

TEST(Placement, TurnsAreSpreadByWeight) {
  std::mt19937_64 random(20261122);
  for (int round = 0; round < 200; ++round) {
    std::vector<TierShare> shares;
    uint64_t sum = 0;
    for (uint8_t tier = 1; tier <= 1 + random() % 5; ++tier) {
      shares.push_back({Placement::in(tier), static_cast<uint32_t>(1 + random() % 20)});
      sum += shares.back().weight;
    }
    const auto plan = HeapPlan::interleaved(shares);
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->turns().size(), sum);
    std::vector<uint64_t> seen(shares.size());
    for (size_t turn = 0; turn < sum; ++turn) {
      ++seen[plan->turns()[turn].tier() - 1u];
      // Nobody is ever a whole turn ahead of a fair share, or one and a bit behind it.
      for (size_t i = 0; i < shares.size(); ++i) {
        const double fair =
            static_cast<double>(turn + 1) * shares[i].weight / static_cast<double>(sum);
        ASSERT_NEAR(static_cast<double>(seen[i]), fair, 2.0);
      }
    }
    for (size_t i = 0; i < shares.size(); ++i) EXPECT_EQ(seen[i], shares[i].weight);
  }
}

}  // namespace
}  // namespace tidepool
