// SPDX-License-Identifier: Apache-2.0
// What a program does to ranges, while pages migrate: random sequences by several threads against a
// model kept outside managed memory, and the odd cases one by one.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/migrate/fixture.h"
#include "tests/rounds.h"

namespace tidepool {
namespace {

constexpr uint64_t kWords = kPageSize / sizeof(uint64_t);

Bytes pages(uint64_t count) { return Bytes(count * kPageSize); }

/// True if the kernel cannot read the byte.
bool unreadable(const void* address) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool refused = write(ends[1], address, 1) == -1 && errno == EFAULT;
  close(ends[0]);
  close(ends[1]);
  return refused;
}

/// One allocation as the model sees it: the value each page must show.
struct Block {
  uint64_t* memory = nullptr;
  std::vector<uint64_t> values;
  bool readonly = false;
};

/// One thread's blocks; no other thread touches them, all share the runtime.
class Player {
 public:
  Player(Runtime& runtime, uint64_t seed) : runtime_(runtime), random_(seed) {}

  /// One operation; false on a wrong byte or a refused call. `last` names it.
  bool step() {
    const uint64_t pick = random_() % 16;
    if (blocks_.size() < 3 || (pick == 0 && total_ < 3000)) return named("allocate", allocate());
    Block& block = blocks_[random_() % blocks_.size()];
    switch (pick) {
      case 1:
        return named("release", release(block));
      case 2:
        return named("release part", releasePart(block));
      case 3:
        return named("discard", discard(block));
      case 4:
        return named("resize", resize(block));
      case 5:
        return named("protect", protect(block));
      case 9:
        return named("withdraw", withdraw(block));
      case 10:
        return named("hide", hide(block));
      case 6:
      case 7:
      case 8:
        return named("write", write(block));
      default:
        return named("check", check(block));
    }
  }
  bool checkAll() {
    return std::all_of(blocks_.begin(), blocks_.end(), [this](Block& block) {
      for (uint64_t page = 0; page < block.values.size(); ++page) {
        if (!checkPage(block, page)) return false;
      }
      return true;
    });
  }
  bool releaseAll() {
    for (const Block& block : blocks_) {
      if (!runtime_.release(block.memory, pages(block.values.size()))) return false;
    }
    return true;
  }
  const char* last() const { return last_; }

 private:
  bool named(const char* name, bool good) {
    last_ = name;
    return good;
  }
  static bool checkPage(const Block& block, uint64_t page) {
    const volatile uint64_t* words = block.memory + page * kWords;
    return words[0] == block.values[page] && words[kWords - 1] == block.values[page];
  }
  void set(Block& block, uint64_t page) {
    volatile uint64_t* words = block.memory + page * kWords;
    block.values[page] = random_() | 1;
    words[0] = block.values[page];
    words[kWords - 1] = block.values[page];
  }
  /// A random part of `count` pages.
  std::pair<uint64_t, uint64_t> part(uint64_t count) {
    const uint64_t first = random_() % count;
    return {first, 1 + random_() % (count - first)};
  }

  bool allocate() {
    const uint64_t count = random_() % 4 == 0 ? 256 + random_() % 1200 : 1 + random_() % 80;
    const uint64_t alignment = kPageSize << random_() % 10;
    const bool reserved = random_() % 2 == 0;
    auto memory = reserved ? runtime_.reserve(pages(count), Bytes(alignment))
                           : runtime_.allocate(pages(count), Bytes(alignment));
    if (!memory || reinterpret_cast<uintptr_t>(*memory) % alignment != 0) return false;
    if (reserved && !runtime_.protect(*memory, pages(count), PROT_READ | PROT_WRITE)) return false;
    blocks_.push_back({static_cast<uint64_t*>(*memory), std::vector<uint64_t>(count, 0), false});
    total_ += count;
    return checkPage(blocks_.back(), count - 1);
  }
  void forget(Block& block) {
    std::swap(block, blocks_.back());
    blocks_.pop_back();
  }
  bool release(Block& block) {
    const bool good = runtime_.release(block.memory, pages(block.values.size())).has_value();
    total_ -= block.values.size();
    forget(block);
    return good;
  }
  /// A hole in the middle makes two blocks of one.
  bool releasePart(Block& block) {
    if (block.values.size() < 3) return release(block);
    const auto [first, count] = part(block.values.size());
    if (!runtime_.release(block.memory + first * kWords, pages(count))) return false;
    total_ -= count;
    const auto values = block.values.begin();
    Block left{block.memory, {values, values + first}, block.readonly};
    Block right{block.memory + (first + count) * kWords,
                {values + first + count, block.values.end()},
                block.readonly};
    forget(block);
    if (!left.values.empty()) blocks_.push_back(std::move(left));
    if (!right.values.empty()) blocks_.push_back(std::move(right));
    return true;
  }
  bool discard(Block& block) {
    const auto [first, count] = part(block.values.size());
    if (!runtime_.discard(block.memory + first * kWords, pages(count))) return false;
    std::fill_n(block.values.begin() + first, count, 0);
    return checkPage(block, first) && checkPage(block, first + count - 1);
  }
  bool resize(Block& block) {
    if (block.readonly) return true;
    const uint64_t old = block.values.size();
    const uint64_t wanted = 1 + random_() % (2 * old);
    auto moved = runtime_.resize(block.memory, pages(old), pages(wanted));
    if (!moved) return false;
    block.memory = static_cast<uint64_t*>(*moved);
    block.values.resize(wanted, 0);
    total_ += wanted - old;
    return checkPage(block, 0) && checkPage(block, wanted - 1);
  }
  uint64_t* wordsOf(const Block& block, uint64_t page) { return block.memory + page * kWords; }
  int rights(const Block& block) { return block.readonly ? PROT_READ : PROT_READ | PROT_WRITE; }
  /// A part is given up, its neighbours are used while it is closed, and it is opened again.
  bool withdraw(Block& block) {
    const auto [first, count] = part(block.values.size());
    if (!runtime_.withdraw(wordsOf(block, first), pages(count))) return false;
    std::fill_n(block.values.begin() + static_cast<long>(first), count, 0);
    if (first > 0 && !checkPage(block, first - 1)) return false;
    return runtime_.protect(wordsOf(block, first), pages(count), rights(block)).has_value();
  }
  /// The same, but the part keeps its bytes.
  bool hide(Block& block) {
    const auto [first, count] = part(block.values.size());
    if (!runtime_.protect(wordsOf(block, first), pages(count), PROT_NONE)) return false;
    if (first > 0 && !checkPage(block, first - 1)) return false;
    return runtime_.protect(wordsOf(block, first), pages(count), rights(block)).has_value();
  }
  bool protect(Block& block) {
    block.readonly = !block.readonly;
    const int rights = block.readonly ? PROT_READ : PROT_READ | PROT_WRITE;
    return runtime_.protect(block.memory, pages(block.values.size()), rights).has_value();
  }
  bool write(Block& block) {
    if (block.readonly) return true;
    const auto [first, count] = part(block.values.size());
    for (uint64_t i = 0; i < std::min<uint64_t>(count, 64); ++i) set(block, first + i);
    return true;
  }
  bool check(Block& block) {
    const auto [first, count] = part(block.values.size());
    for (uint64_t i = 0; i < std::min<uint64_t>(count, 64); ++i) {
      if (!checkPage(block, first + i)) return false;
    }
    return true;
  }

  Runtime& runtime_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  uint64_t total_ = 0;  // pages in blocks_
  const char* last_ = "";
};

class Ranges : public testing::TestWithParam<Setup> {};
class FetchRanges : public Ranges {};

void play(const Setup& setup, std::optional<FaultyRates> faulty) {
  TestRuntime test = TestRuntime::start(setup, Bytes(8 * kMiB), Bytes(512 * kMiB),
                                        Nanoseconds(5'000'000'000), faulty);
  ASSERT_NE(test.runtime, nullptr);
  const uint64_t managed = test.runtime->stats().managed_bytes.load();
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(rounds(1, 60));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      Player player(*test.runtime, seed);
      for (uint64_t step = 0; !wrong && std::chrono::steady_clock::now() < end; ++step) {
        if (player.step()) continue;
        if (!wrong.exchange(true)) {
          ADD_FAILURE() << "player " << seed << ", step " << step << ": " << player.last();
        }
      }
      if (!wrong && !player.checkAll()) ADD_FAILURE() << "at the end, player " << seed;
      if (!wrong && !player.releaseAll()) ADD_FAILURE() << "release, player " << seed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(test.runtime->stats().managed_bytes.load(), managed);
  EXPECT_GT(test.runtime->stats().demotions.load(), 0u) << "nothing migrated";
}

TEST_P(Ranges, RandomOperationsMatchTheModel) { play(GetParam(), std::nullopt); }

TEST_P(Ranges, RandomOperationsMatchTheModelWhenTheKernelFails) {
  play(GetParam(), FaultyRates{.move_busy = 7,
                               .move_retry = 9,
                               .copy_retry = 5,
                               .copy_no_memory = 11,
                               .protect_fails = 13});
}

TEST_P(Ranges, EverythingReleasedLeavesNothingHeld) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(128 * kMiB));
  for (int round = 0; round < 4; ++round) {
    auto memory = test.runtime->allocate(Bytes(48 * kMiB), Bytes(kPageSize));
    ASSERT_TRUE(memory);
    memset(*memory, round + 1, 48 * kMiB);
    ASSERT_TRUE(test.runtime->release(*memory, Bytes(48 * kMiB)));
    EXPECT_TRUE(unreadable(*memory)) << "released memory is out of reach";
  }
  // Writes under way may still hold staging and frames: a moment later nothing does.
  const StatsPage& stats = test.runtime->stats();
  uint64_t held = 1;
  for (int i = 0; i < 1000 && held > 0; ++i) {
    test.runtime->refreshStats();
    held = stats.tiers[0].used_bytes.load() + stats.tiers[1].used_bytes.load();
    if (held > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(stats.tiers[0].used_bytes.load(), 0u);
  EXPECT_EQ(stats.tiers[1].used_bytes.load(), 0u);
}

TEST_P(Ranges, DiscardedPagesAreZeroWhereverTheyWere) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(128 * kMiB));
  constexpr uint64_t kCount = 40 * kMiB / kPageSize;
  auto memory = test.runtime->allocate(pages(kCount), Bytes(kPageSize));
  ASSERT_TRUE(memory);
  auto* words = static_cast<volatile uint64_t*>(*memory);
  for (uint64_t page = 0; page < kCount; ++page) words[page * kWords] = page + 1;
  // Every third page alone, then a run across granules.
  for (uint64_t page = 0; page < kCount; page += 3) {
    ASSERT_TRUE(test.runtime->discard(const_cast<uint64_t*>(words + page * kWords), pages(1)));
  }
  for (uint64_t page = 0; page < kCount; ++page) {
    ASSERT_EQ(words[page * kWords], page % 3 == 0 ? 0 : page + 1) << page;
  }
  ASSERT_TRUE(test.runtime->discard(const_cast<uint64_t*>(words + 100 * kWords), pages(3000)));
  for (uint64_t page = 100; page < 3100; ++page) ASSERT_EQ(words[page * kWords], 0u) << page;
  EXPECT_EQ(words[99 * kWords], 0u);
  EXPECT_EQ(words[3100 * kWords], 3101u);
}

TEST_P(Ranges, AlignmentsFromAPageToAGigabyte) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(64 * kMiB));
  for (uint64_t alignment = kPageSize; alignment <= kGiB; alignment *= 2) {
    auto memory = test.runtime->allocate(pages(3), Bytes(alignment));
    ASSERT_TRUE(memory) << memory.error().text();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % alignment, 0u) << alignment;
    EXPECT_TRUE(test.runtime->contains(*memory));
    memset(*memory, 1, 3 * kPageSize);
  }
}

TEST_P(Ranges, ResizeKeepsContentsAndFailsCleanly) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(256 * kMiB));
  Runtime& runtime = *test.runtime;
  auto memory = runtime.allocate(Bytes(16 * kMiB), Bytes(kPageSize));
  auto blocker = runtime.allocate(pages(1), Bytes(kPageSize));  // no room to grow in place
  ASSERT_TRUE(memory && blocker);
  auto* words = static_cast<uint64_t*>(*memory);
  for (uint64_t i = 0; i < 16 * kMiB / 8; i += 64) words[i] = i + 1;
  auto grown = runtime.resize(words, Bytes(16 * kMiB), Bytes(40 * kMiB));
  ASSERT_TRUE(grown);
  words = static_cast<uint64_t*>(*grown);
  for (uint64_t i = 0; i < 16 * kMiB / 8; i += 64) ASSERT_EQ(words[i], i + 1);
  for (uint64_t i = 16 * kMiB / 8; i < 40 * kMiB / 8; i += 64) ASSERT_EQ(words[i], 0u);
  // Sizes that cannot be: an error, and nothing has changed.
  const uint64_t most = ~uint64_t{0};
  for (const uint64_t size : {most, most - kPageSize, most / 2, uint64_t{1} << 50, uint64_t{0}}) {
    EXPECT_FALSE(runtime.resize(words, Bytes(40 * kMiB), Bytes(size))) << size;
  }
  for (uint64_t i = 0; i < 16 * kMiB / 8; i += 64) ASSERT_EQ(words[i], i + 1);
  auto shrunk = runtime.resize(words, Bytes(40 * kMiB), pages(3));
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(*shrunk, words);
  EXPECT_EQ(words[64], 65u);
  EXPECT_TRUE(unreadable(words + 3 * kWords));
}

TEST_P(Ranges, AReservationCostsWhatIsOpenedOfIt) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(128 * kMiB));
  Runtime& runtime = *test.runtime;
  const StatsPage& stats = runtime.stats();
  constexpr Bytes kReserved(24 * kGiB);
  EXPECT_FALSE(runtime.reserve(Bytes(33 * kGiB), Bytes(kPageSize)))
      << "more than half of the space";
  auto memory = runtime.reserve(kReserved, Bytes(kPageSize));
  ASSERT_TRUE(memory) << memory.error().text();
  EXPECT_FALSE(runtime.reserve(kReserved, Bytes(kPageSize))) << "both are more than half";
  auto* bytes = static_cast<char*>(*memory);
  EXPECT_TRUE(unreadable(bytes));
  EXPECT_EQ(stats.managed_bytes.load(), 0u);
  // In its middle, off a granule, over the budget.
  char* const open = bytes + 8 * kGiB + 5 * kPageSize;
  ASSERT_TRUE(runtime.protect(open, Bytes(24 * kMiB), PROT_READ | PROT_WRITE));
  EXPECT_EQ(stats.managed_bytes.load(), 24 * kMiB);
  memset(open, 3, 24 * kMiB);
  EXPECT_TRUE(unreadable(open - kPageSize));
  EXPECT_TRUE(unreadable(open + 24 * kMiB));
  for (uint64_t at = 0; at < 24 * kMiB; at += kPageSize) ASSERT_EQ(open[at], 3) << at;
  runtime.refreshStats();
  EXPECT_LE(stats.metadata_bytes.load(), 14 * kPageSize) << "granules that were never opened";
  ASSERT_TRUE(runtime.withdraw(open, Bytes(16 * kMiB)));
  EXPECT_EQ(stats.managed_bytes.load(), 8 * kMiB);
  EXPECT_TRUE(unreadable(open));
  ASSERT_TRUE(runtime.protect(open, Bytes(kMiB), PROT_READ));
  for (uint64_t at = 0; at < kMiB; at += kPageSize) ASSERT_EQ(open[at], 0) << at;
  for (uint64_t at = 16 * kMiB; at < 24 * kMiB; at += kPageSize) ASSERT_EQ(open[at], 3) << at;
  EXPECT_TRUE(runtime.reserveAt(bytes + kReserved.value(), pages(1)));
  EXPECT_FALSE(runtime.reserveAt(bytes, pages(1))) << "in use";
  ASSERT_TRUE(runtime.release(bytes, kReserved));
  EXPECT_EQ(stats.managed_bytes.load(), 0u);
  EXPECT_TRUE(unreadable(open));
  EXPECT_FALSE(runtime.withdraw(open, pages(1)));
}

TEST_P(Ranges, BadRangesAreErrorsAndNeverMore) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(64 * kMiB));
  Runtime& runtime = *test.runtime;
  auto memory = runtime.allocate(pages(8), Bytes(kPageSize));
  ASSERT_TRUE(memory);
  auto* bytes = static_cast<char*>(*memory);
  char outside[1];
  EXPECT_FALSE(runtime.release(bytes + 1, pages(1)));
  EXPECT_FALSE(runtime.release(bytes, Bytes(100)));
  EXPECT_FALSE(runtime.release(bytes, Bytes()));
  EXPECT_FALSE(runtime.release(outside, pages(1)));
  EXPECT_FALSE(runtime.release(bytes, pages(9))) << "more than was allocated";
  EXPECT_FALSE(runtime.release(bytes, Bytes(~uint64_t{0} - kPageSize + 1)));
  EXPECT_FALSE(runtime.discard(bytes, Bytes(~uint64_t{0} - kPageSize + 1)));
  EXPECT_FALSE(runtime.protect(bytes, pages(9), PROT_READ | PROT_WRITE));
  EXPECT_TRUE(unreadable(bytes + 8 * kPageSize)) << "protect() must not open free space";
  EXPECT_FALSE(runtime.resize(bytes, pages(9), pages(20)));
  EXPECT_FALSE(runtime.allocate(Bytes(), Bytes(kPageSize)));
  EXPECT_FALSE(runtime.allocate(Bytes(~uint64_t{0}), Bytes(kPageSize)));
  EXPECT_FALSE(runtime.allocate(Bytes(uint64_t{1} << 60), Bytes(kPageSize)));
  EXPECT_TRUE(runtime.release(bytes, pages(8)));
  EXPECT_FALSE(runtime.release(bytes, pages(8))) << "twice";
}

TEST_P(Ranges, WhatIsHandedOverIsTheKernelsUntilItIsReleased) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(64 * kMiB));
  Runtime& runtime = *test.runtime;
  constexpr Bytes kSize(3 * kGranuleSize);
  auto memory = runtime.allocate(kSize, Bytes(kGranuleSize));
  ASSERT_TRUE(memory);
  auto* const bytes = static_cast<char*>(*memory);
  memset(bytes, 7, kSize.value());
  // On both sides of a boundary of granules.
  char* const given = bytes + kGranuleSize - 5 * kPageSize;
  ASSERT_TRUE(runtime.handOver(given, pages(9)));
  const auto owned = [&](char* at, uint64_t count) {
    const OwnerSpan span = runtime.ownerAt(at, kSize);
    return span.size == pages(count) ? std::optional(span.owner) : std::nullopt;
  };
  EXPECT_EQ(owned(bytes, kPagesPerGranule - 5), Owner::kRuntime);
  EXPECT_EQ(owned(given, 9), Owner::kKernel);
  for (uint64_t page = 0; page < 9; ++page) EXPECT_EQ(given[page * kPageSize], 7) << page;
  // By a thread that took it for the runtime's right before.
  ASSERT_TRUE(runtime.protect(given - kPageSize, pages(11), PROT_READ | PROT_WRITE));
  EXPECT_EQ(owned(given, 9), Owner::kKernel);
  ASSERT_TRUE(runtime.release(bytes, kSize));
  EXPECT_EQ(runtime.ownerAt(given, pages(9)).owner, Owner::kNobody);
  ASSERT_TRUE(runtime.claim(bytes, kSize));
  EXPECT_EQ(owned(given, 2 * kPagesPerGranule + 5), Owner::kRuntime);
  EXPECT_EQ(given[0], 0);
}

TEST_P(Ranges, ReadOnlyPagesKeepTheirRightsAndBytes) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(128 * kMiB));
  Runtime& runtime = *test.runtime;
  constexpr uint64_t kCount = 4 * kMiB / kPageSize;
  auto memory = runtime.allocate(pages(kCount), Bytes(kGranuleSize));
  auto other = runtime.allocate(Bytes(48 * kMiB), Bytes(kGranuleSize));
  ASSERT_TRUE(memory && other);
  auto* words = static_cast<volatile uint64_t*>(*memory);
  for (uint64_t page = 0; page < kCount; ++page) words[page * kWords] = page + 5;
  ASSERT_TRUE(runtime.protect(*memory, pages(kCount), PROT_READ));
  memset(*other, 1, 48 * kMiB);  // pushes what it can
  for (uint64_t page = 0; page < kCount; ++page) ASSERT_EQ(words[page * kWords], page + 5);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(read(ends[0], *memory, 1), -1) << "still read-only";
  close(ends[0]);
  close(ends[1]);
  ASSERT_TRUE(runtime.protect(*memory, pages(kCount), PROT_READ | PROT_WRITE));
  words[0] = 1;
  EXPECT_EQ(words[0], 1u);
}

TEST_P(FetchRanges, ReadOnlyPagesLeaveLocalMemoryToo) {
  TestRuntime test = TestRuntime::start(GetParam(), Bytes(8 * kMiB), Bytes(128 * kMiB));
  constexpr uint64_t kCount = 32 * kMiB / kPageSize;
  auto memory = test.runtime->allocate(pages(kCount), Bytes(kPageSize));
  ASSERT_TRUE(memory);
  auto* words = static_cast<volatile uint64_t*>(*memory);
  for (uint64_t part = 0; part < 32; ++part) {
    const uint64_t first = part * (kCount / 32);
    for (uint64_t i = 0; i < kCount / 32; ++i) words[(first + i) * kWords] = first + i + 3;
    ASSERT_TRUE(test.runtime->protect(const_cast<uint64_t*>(words + first * kWords),
                                      pages(kCount / 32), PROT_READ));
  }
  for (int round = 0; round < 2; ++round) {
    for (uint64_t page = 0; page < kCount; ++page) ASSERT_EQ(words[page * kWords], page + 3);
  }
  test.runtime->refreshStats();
  EXPECT_EQ(test.runtime->stats().error_count.load(), 0u) << "said that the budget is exceeded";
  EXPECT_LE(test.runtime->stats().tiers[0].used_bytes.load(), 9 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Tiers, FetchRanges,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy}),
                         setupName);

INSTANTIATE_TEST_SUITE_P(Tiers, Ranges,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy},
                                         Setup{Far::kDirect, Eviction::kMove},
                                         Setup{Far::kDirect, Eviction::kCopy}),
                         setupName);

}  // namespace
}  // namespace tidepool
