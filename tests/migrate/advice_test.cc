// SPDX-License-Identifier: Apache-2.0
// Advice: what is paged out goes far though there is room, what is needed comes back before it is
// touched, and no advice ever changes a byte.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "runtime/migrate/core/staging.h"
#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
constexpr uint64_t kSize = 24 * kMiB;
constexpr uint64_t kPages = kSize / kPageSize;
constexpr uint64_t kStaging = Staging::kSegments * Staging::kSlotsPerSegment * kPageSize;

class AdviceOf : public testing::TestWithParam<Setup> {
 protected:
  void begin(Bytes dram) {
    test_ = TestRuntime::start(GetParam(), dram, Bytes(128 * kMiB));
    auto memory = runtime().allocate(Bytes(kSize), Bytes(kGranuleSize));
    ASSERT_TRUE(memory);
    words_ = static_cast<volatile uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) words_[page * kWords] = page + 1;
  }
  Runtime& runtime() { return *test_.runtime; }
  void* at(uint64_t page) { return const_cast<uint64_t*>(words_ + page * kWords); }
  uint64_t local() {
    runtime().refreshStats();
    return runtime().stats().tiers[0].used_bytes.load();
  }
  uint64_t wrongPages() const {
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < kPages; ++page) wrong += words_[page * kWords] != page + 1;
    return wrong;
  }

  TestRuntime test_;
  volatile uint64_t* words_ = nullptr;
};

TEST_P(AdviceOf, PageOutMakesLocalMemoryFree) {
  begin(Bytes(64 * kMiB));
  ASSERT_GE(local(), kSize);
  runtime().pageOut(at(0), Bytes(kSize));
  // A fetch tier's pages stay in limbo while there is room for them.
  while (local() > kStaging) std::this_thread::yield();
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(AdviceOf, WillNeedBringsFetchTiersPagesIn) {
  if (GetParam().far == Far::kDirect) return;  // used in place
  begin(Bytes(64 * kMiB));
  runtime().pageOut(at(0), Bytes(kSize));
  while (local() > kStaging) std::this_thread::yield();
  const uint64_t faults = runtime().stats().faults_missing.load();
  runtime().willNeed(at(0), Bytes(kSize));
  while (local() < kSize) std::this_thread::yield();
  EXPECT_EQ(runtime().stats().faults_missing.load(), faults);
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(AdviceOf, WillNeedPushesNothingOut) {
  if (GetParam().far == Far::kDirect) return;
  begin(Bytes(8 * kMiB));
  const uint64_t demoted = runtime().stats().demoted_bytes.load();
  for (int round = 0; round < 50; ++round) {
    runtime().willNeed(at(0), Bytes(kSize));
    std::this_thread::yield();
  }
  EXPECT_LE(local(), 8 * kMiB + kStaging);
  // What the migrator was about is still under way; far less than the range all the same.
  EXPECT_LE(runtime().stats().demoted_bytes.load() - demoted, kSize / 2);
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_P(AdviceOf, NoAdviceChangesAByte) {
  begin(Bytes(8 * kMiB));
  std::atomic<bool> stop{false};
  std::thread adviser([&] {
    std::mt19937_64 random(20261121);
    while (!stop) {
      const uint64_t first = random() % kPages;
      const Bytes size((1 + random() % std::min<uint64_t>(kPages - first, 700)) * kPageSize);
      const uint64_t pick = random() % 3;
      if (pick == 0) runtime().cold(at(first), size);
      if (pick == 1) runtime().pageOut(at(first), size);
      if (pick == 2) runtime().willNeed(at(first), size);
      std::this_thread::yield();
    }
  });
  std::mt19937_64 random(7);
  for (int round = 0; round < 6'000; ++round) {
    const uint64_t page = random() % kPages;
    ASSERT_EQ(words_[page * kWords], page + 1);
    if (round % 3 == 0) words_[page * kWords] = page + 1;
    if (round % 1000 == 0) {
      // A range that goes while advice on it may be queued.
      auto other = runtime().allocate(Bytes(kMiB), Bytes(kPageSize));
      ASSERT_TRUE(other);
      static_cast<volatile char*>(*other)[0] = 1;
      runtime().pageOut(*other, Bytes(kMiB));
      ASSERT_TRUE(runtime().release(*other, Bytes(kMiB)));
    }
  }
  stop = true;
  adviser.join();
  EXPECT_EQ(wrongPages(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tiers, AdviceOf,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy},
                                         Setup{Far::kDirect, Eviction::kMove}),
                         setupName);

}  // namespace
}  // namespace tidepool
