// SPDX-License-Identifier: Apache-2.0
// The local budget: kept while pages migrate, as seen by a watcher; exceeded only where nothing can
// leave, with a word about it and without a hang.
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/migrate/core/staging.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
// Pages on their way out are the program's own until they are written.
constexpr uint64_t kStaging = Staging::kSegments * Staging::kSlotsPerSegment * kPageSize;

class BudgetOf : public testing::TestWithParam<Setup> {};

TEST_P(BudgetOf, IsKeptWhilePagesMigrate) {
  constexpr uint64_t kLimit = 16 * kMiB;
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(kLimit), Bytes(256 * kMiB));
  auto memory = test.runtime->allocate(Bytes(96 * kMiB), Bytes(kGranuleSize));
  ASSERT_TRUE(memory);
  auto* words = static_cast<volatile uint64_t*>(*memory);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> most{0};
  std::thread watcher([&] {
    while (!stop) {
      test.runtime->refreshStats();
      const uint64_t held = test.runtime->stats().tiers[0].used_bytes.load();
      if (held > most) most = held;
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      // Scans, strides and writes: fresh pages, prefetch, rescues.
      for (uint64_t round = 0; round < 3; ++round) {
        for (uint64_t page = thread; page < 96 * kMiB / kPageSize; page += 2) {
          words[page * kWords] = words[page * kWords] + 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  watcher.join();
  for (uint64_t page = 0; page < 96 * kMiB / kPageSize; ++page) ASSERT_EQ(words[page * kWords], 3u);
  EXPECT_LE(most.load(), kLimit + kStaging);
  EXPECT_GT(most.load(), kLimit / 2) << "the budget is there to be used";
  EXPECT_EQ(test.runtime->stats().error_count.load(), 0u) << test.runtime->stats().errors[0];
}

TEST_P(BudgetOf, PinnedPagesBeyondItDoNotHangTheProgram) {
  if (GetParam().eviction == Eviction::kCopy) return;  // pins need MOVE (docs/limits.md)
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(4 * kMiB), Bytes(64 * kMiB));
  auto memory = test.runtime->allocate(Bytes(24 * kMiB), Bytes(kGranuleSize));
  ASSERT_TRUE(memory);
  auto* words = static_cast<volatile uint64_t*>(*memory);
  io_uring ring{};
  ASSERT_EQ(io_uring_queue_init(2, &ring, 0), 0);
  // The kernel itself faults in and pins twice the budget.
  iovec buffer{*memory, 8 * kMiB};
  ASSERT_EQ(io_uring_register_buffers(&ring, &buffer, 1), 0) << "RLIMIT_MEMLOCK?";
  for (uint64_t page = 0; page < 24 * kMiB / kPageSize; ++page) words[page * kWords] = page + 1;
  for (uint64_t page = 0; page < 24 * kMiB / kPageSize; ++page) {
    ASSERT_EQ(words[page * kWords], page + 1);
  }
  io_uring_queue_exit(&ring);
}

INSTANTIATE_TEST_SUITE_P(Tiers, BudgetOf,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy},
                                         Setup{Far::kDirect, Eviction::kMove},
                                         Setup{Far::kDirect, Eviction::kCopy}),
                         setupName);

}  // namespace
}  // namespace tidepool
