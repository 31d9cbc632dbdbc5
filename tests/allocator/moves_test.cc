// SPDX-License-Identifier: Apache-2.0
// Prefetch, evict and hints: completions tell the truth (the statistics say so, too), and no hint
// changes a byte.
#include <cstring>
#include <random>
#include <thread>

#include "tests/allocator/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kSize = 16 * kMiB;
constexpr uint64_t kPages = kSize / kPageSize;
constexpr uint64_t kMinute = 60'000'000'000;

class MovesOf : public testing::TestWithParam<FarMemory> {
 protected:
  void begin(Bytes dram) {
    test_ = TestContext::open(GetParam(), dram, Bytes(128 * kMiB));
    heap_ = test_.makeHeap();
    bytes_ = static_cast<unsigned char*>(tidepool_aligned_alloc(heap_, kGranuleSize, kSize));
    ASSERT_NE(bytes_, nullptr) << tidepool_error_text();
    for (uint64_t page = 0; page < kPages; ++page) bytes_[page * kPageSize] = fill(page);
  }
  void TearDown() override {
    if (heap_ == nullptr) return;
    EXPECT_EQ(tidepool_heap_destroy(heap_), TIDEPOOL_OK);
  }
  static unsigned char fill(uint64_t page) { return static_cast<unsigned char>(page % 251 + 1); }
  uint64_t wrongPages() const {
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < kPages; ++page) wrong += bytes_[page * kPageSize] != fill(page);
    return wrong;
  }
  uint64_t far() {
    uint64_t sum = 0;
    for (const uint64_t bytes : statsOf(heap_).far_bytes) sum += bytes;
    return sum;
  }
  /// Frees the completion.
  static void expectDone(tidepool_completion* completion) {
    ASSERT_NE(completion, nullptr) << tidepool_error_text();
    EXPECT_EQ(tidepool_completion_wait(completion, kMinute), TIDEPOOL_OK) << tidepool_error_text();
    uint64_t total = 0, done = 0;
    EXPECT_EQ(tidepool_completion_test(completion, &total, &done), TIDEPOOL_OK);
    EXPECT_EQ(total, done);
    EXPECT_EQ(total, kPages);
    tidepool_completion_free(completion);
  }

  TestContext test_;
  tidepool_heap* heap_ = nullptr;
  unsigned char* bytes_ = nullptr;
};

TEST_P(MovesOf, EvictedPagesAreFarAndComeBack) {
  begin(Bytes(64 * kMiB));
  EXPECT_GE(statsOf(heap_).local_bytes, kSize);
  tidepool_completion* evicted = nullptr;
  ASSERT_EQ(tidepool_evict(test_.context, bytes_, kSize, &evicted), TIDEPOOL_OK);
  expectDone(evicted);
  // What is written to a fetch tier may still have its local memory, up to the staging's size.
  EXPECT_GE(far(), kSize / 2);

  tidepool_completion* brought = nullptr;
  ASSERT_EQ(tidepool_prefetch(test_.context, bytes_, kSize, &brought), TIDEPOOL_OK);
  expectDone(brought);
  if (GetParam() == FarMemory::kRemote) {
    EXPECT_GE(statsOf(heap_).local_bytes, kSize);
  }
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(MovesOf, PrefetchAloneBringsIn) {
  if (GetParam() != FarMemory::kRemote) return;
  begin(Bytes(64 * kMiB));
  tidepool_completion* evicted = nullptr;
  ASSERT_EQ(tidepool_evict(test_.context, bytes_, kSize, &evicted), TIDEPOOL_OK);
  expectDone(evicted);
  const uint64_t before = far();
  ASSERT_EQ(tidepool_prefetch(test_.context, bytes_, kSize, nullptr), TIDEPOOL_OK);
  while (far() > before / 8) std::this_thread::yield();
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(MovesOf, WhatFindsNoRoomTimesOutAndMayBeFreed) {
  if (GetParam() != FarMemory::kRemote) return;
  begin(Bytes(6 * kMiB));
  tidepool_completion* completion = nullptr;
  ASSERT_EQ(tidepool_prefetch(test_.context, bytes_, kSize, &completion), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_completion_wait(completion, 30'000'000), TIDEPOOL_TIMED_OUT);
  EXPECT_NE(strstr(tidepool_error_text(), "of 4096 pages"), nullptr) << tidepool_error_text();
  EXPECT_EQ(tidepool_completion_test(completion, nullptr, nullptr), TIDEPOOL_TIMED_OUT);
  EXPECT_EQ(infoOf(test_.context).users, 2u);
  EXPECT_EQ(tidepool_close(test_.context), TIDEPOOL_CONFLICT);
  tidepool_completion_free(completion);
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(MovesOf, PartsOfPagesAreBroughtInButNotMovedOut) {
  begin(Bytes(64 * kMiB));
  tidepool_completion* completion = nullptr;
  ASSERT_EQ(tidepool_evict(test_.context, bytes_ + 1, kPageSize, &completion), TIDEPOOL_OK);
  uint64_t total = 1;
  EXPECT_EQ(tidepool_completion_test(completion, &total, nullptr), TIDEPOOL_OK);
  EXPECT_EQ(total, 0u) << "no whole page lies in it";
  tidepool_completion_free(completion);
  ASSERT_EQ(tidepool_prefetch(test_.context, bytes_ + 1, kPageSize, &completion), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_completion_wait(completion, kMinute), TIDEPOOL_OK);
  EXPECT_EQ(tidepool_completion_test(completion, &total, nullptr), TIDEPOOL_OK);
  EXPECT_EQ(total, 2u);
  tidepool_completion_free(completion);
}

TEST_P(MovesOf, NoHintChangesAByte) {
  begin(Bytes(6 * kMiB));
  std::mt19937_64 random(20261122);
  for (int round = 0; round < 600; ++round) {
    const uint64_t first = random() % kPages;
    const uint64_t size = (1 + random() % (kPages - first)) * kPageSize - random() % 100;
    const uint64_t pick = random() % 7;
    if (pick < 5) {
      EXPECT_EQ(tidepool_advise(test_.context, bytes_ + first * kPageSize, size,
                                static_cast<tidepool_hint>(pick)),
                TIDEPOOL_OK);
    } else if (pick == 5) {
      EXPECT_EQ(tidepool_evict(test_.context, bytes_ + first * kPageSize, size, nullptr),
                TIDEPOOL_OK);
    } else {
      EXPECT_EQ(tidepool_prefetch(test_.context, bytes_ + first * kPageSize, size, nullptr),
                TIDEPOOL_OK);
    }
    const uint64_t page = random() % kPages;
    ASSERT_EQ(bytes_[page * kPageSize], fill(page));
    bytes_[page * kPageSize] = fill(page);
  }
  EXPECT_EQ(wrongPages(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Memory, MovesOf, testing::Values(FarMemory::kCxl, FarMemory::kRemote),
                         farName);

}  // namespace
}  // namespace tidepool
