// SPDX-License-Identifier: Apache-2.0
// Pages that go unchanged are not written back; pages that were changed at any moment are.
#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tests/migrate/fixture.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);
constexpr uint64_t kPages = 64 * kMiB / kPageSize;
constexpr Setup kRemote{Far::kRemote, Eviction::kMove};

struct Table {
  TestRuntime test;
  volatile uint64_t* words = nullptr;

  explicit Table(const Setup& setup, Bytes far = Bytes(128 * kMiB),
                 std::optional<FaultyRates> faulty = std::nullopt)
      : test(TestRuntime::start(setup, Bytes(16 * kMiB), far, Nanoseconds(5'000'000'000), faulty)) {
    auto memory = test.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
    if (!memory) {
      ADD_FAILURE() << memory.error().text();
      return;
    }
    words = static_cast<volatile uint64_t*>(*memory);
    for (uint64_t page = 0; page < kPages; ++page) words[page * kWords] = page;
  }
  uint64_t cleanEvictions() const { return test.runtime->stats().clean_evictions.load(); }
  uint64_t written() const {
    test.runtime->refreshStats();
    return test.runtime->stats().tiers[1].writes_bytes.load();
  }
};

TEST(CleanPages, OfAScanAreNotWrittenBack) {
  Table table(kRemote);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(table.words[page * kWords], page);
  const uint64_t before = table.written();
  for (int round = 0; round < 3; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(table.words[page * kWords], page);
  }
  EXPECT_GT(table.cleanEvictions(), kPages);
  EXPECT_LT(table.written() - before, kPages * kPageSize / 4) << "of three times that";
  const StatsPage& stats = table.test.runtime->stats();
  EXPECT_GT(stats.prefetch_hits.load(), kPages);
  EXPECT_LE(stats.prefetch_hits.load(), stats.prefetched_pages.load());
}

TEST(CleanPages, OfADescentAreFetchedAheadAndNotWrittenBack) {
  Table table(kRemote);
  const auto descend = [&] {
    for (uint64_t page = kPages; page-- > 0;) ASSERT_EQ(table.words[page * kWords], page);
  };
  descend();
  const uint64_t before = table.written();
  for (int round = 0; round < 3; ++round) descend();
  EXPECT_LT(table.written() - before, kPages * kPageSize / 4) << "of three times that";
  EXPECT_GT(table.test.runtime->stats().prefetch_hits.load(), kPages);
}

TEST(CleanPages, OfATableThatIsReadAtRandomAreLearnt) {
  Table table(kRemote);
  std::mt19937_64 random(5);
  const auto look = [&](uint64_t reads) {
    for (uint64_t i = 0; i < reads; ++i) {
      const uint64_t page = random() % kPages;
      ASSERT_EQ(table.words[page * kWords], page);
    }
  };
  look(4 * kPages);
  const uint64_t before = table.written();
  look(2 * kPages);
  EXPECT_LT(table.written() - before, kPages * kPageSize / 4);
}

TEST(CleanPages, OneThatIsWrittenAtAnyMomentIsWrittenBack) {
  Table table(kRemote);
  // The writer counts up in random pages while the reader scans, so that many pages are written
  // just before they leave. No page may fall back.
  std::atomic<bool> stop{false};
  std::vector<uint64_t> counts(kPages);
  std::thread writer([&] {
    std::mt19937_64 random(6);
    while (!stop) {
      const uint64_t page = random() % kPages;
      table.words[page * kWords + 1] = ++counts[page];
    }
  });
  uint64_t sum = 0;
  for (int round = 0; round < 12; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) sum += table.words[page * kWords];
  }
  stop = true;
  writer.join();
  EXPECT_EQ(sum, 12 * (kPages * (kPages - 1) / 2));
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(table.words[page * kWords + 1], counts[page]) << "page " << page;
  }
  EXPECT_GT(table.cleanEvictions(), 0u);
}

TEST(CleanPages, OneThatIsWrittenJustBeforeItMovesIsWrittenBack) {
  std::mutex writing;
  uintptr_t start = 0;  // of the pages that are written to
  std::vector<uint64_t> counts(kPages);
  FaultyRates late;
  late.before_move = [&](uintptr_t from, Bytes) {
    const std::lock_guard lock(writing);
    if (start == 0 || from < start || from >= start + kPages * kPageSize) return;
    // Some of the pages only, so that others show that clean ones are not written.
    const uint64_t page = (from - start) >> kPageShift;
    if (page % 8 != 0) return;
    reinterpret_cast<volatile uint64_t*>(from)[1] = ++counts[page];
  };
  Table table(kRemote, Bytes(128 * kMiB), late);
  const auto writeTo = [&](uintptr_t address) {
    const std::lock_guard lock(writing);
    start = address;
  };
  writeTo(reinterpret_cast<uintptr_t>(table.words));
  for (int round = 0; round < 4; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(table.words[page * kWords], page);
  }
  writeTo(0);
  uint64_t late_writes = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(table.words[page * kWords + 1], counts[page]) << "page " << page;
    late_writes += counts[page];
  }
  EXPECT_GT(late_writes, 0u);
  EXPECT_GT(table.cleanEvictions(), 0u);
}

TEST(CleanPages, GiveTheirCopiesUpWhenFarMemoryRunsShort) {
  // Room for what is far and little more: copies of local pages must not stand in the way.
  Table table(kRemote, Bytes((64 - 8) * kMiB));
  for (int round = 0; round < 6; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (round % 2 == 1) table.words[page * kWords + 2] = page + 7;
      ASSERT_EQ(table.words[page * kWords], page);
    }
  }
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(table.words[page * kWords + 2], page + 7);
  }
  EXPECT_EQ(table.test.runtime->stats().error_count.load(), 0u)
      << table.test.runtime->stats().errors[0];
}

TEST(CleanPages, ThatAreDiscardedFreeTheirFrames) {
  Table table(kRemote);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(table.words[page * kWords], page);
  }
  auto* memory = const_cast<uint64_t*>(table.words);
  ASSERT_TRUE(table.test.runtime->release(memory, Bytes(kPages * kPageSize)));
  // What is on its way out is freed once it is written: the next to be evicted take its place.
  const auto other = table.test.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
  ASSERT_TRUE(other);
  auto* words = static_cast<volatile uint64_t*>(*other);
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWords] = page;
  table.test.runtime->refreshStats();
  EXPECT_LE(table.test.runtime->stats().tiers[1].used_bytes.load(), kPages * kPageSize);
}

}  // namespace
}  // namespace tidepool
