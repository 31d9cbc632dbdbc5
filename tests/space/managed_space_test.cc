// SPDX-License-Identifier: Apache-2.0
// The managed space: what it reserves, and that its metadata is paid for where pages are used only.
#include "runtime/space/managed_space.h"
#include "tests/space/change_page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "runtime/os/memory.h"

namespace tidepool {
namespace {

/// Resident bytes of these pages.
uint64_t residentIn(std::span<const std::byte> pages) {
  // The kernel counts by mapping, and joins neighbours that are alike; these become unlike others.
  const auto from = reinterpret_cast<uintptr_t>(pages.data());
  EXPECT_EQ(madvise(reinterpret_cast<void*>(from), pages.size(), MADV_DONTDUMP), 0);
  FILE* file = fopen("/proc/self/smaps", "re");
  char line[256];
  unsigned long start = 0, end = 0, resident_kib = 0;
  uint64_t sum = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2) continue;
    if (sscanf(line, "Rss: %lu kB", &resident_kib) != 1) continue;
    if (start >= from && end <= from + pages.size()) sum += resident_kib * kKiB;
  }
  fclose(file);
  return sum;
}

TEST(ManagedSpace, AddressesAndPagesAgree) {
  auto made = ManagedSpace::create(Bytes(64 * kGranuleSize + 1));
  ASSERT_TRUE(made) << made.error().text();
  ManagedSpace& space = **made;
  EXPECT_EQ(space.size(), Bytes(65 * kGranuleSize));
  EXPECT_EQ(space.base() % kGranuleSize, 0u);
  EXPECT_TRUE(space.contains(space.base()));
  EXPECT_TRUE(space.contains(space.base() + space.size().value() - 1));
  EXPECT_FALSE(space.contains(space.base() - 1));
  EXPECT_FALSE(space.contains(space.base() + space.size().value()));
  EXPECT_FALSE(space.contains(0));
  for (const uint64_t page : {0ul, 1ul, 511ul, 512ul, 65 * 512ul - 1}) {
    const uintptr_t address = space.addressOf(PageIndex(page));
    EXPECT_EQ(space.pageAt(address), PageIndex(page));
    EXPECT_EQ(space.pageAt(address + kPageSize - 1), PageIndex(page));
    EXPECT_EQ(space.addressOf(granuleOf(PageIndex(page))), roundDown(address, kGranuleSize));
  }
}

TEST(ManagedSpace, AnImpossibleSizeSaysWhatToDo) {
  const auto space = ManagedSpace::create(Bytes(uint64_t{1} << 60));
  ASSERT_FALSE(space);
  EXPECT_EQ(space.error().code(), ErrorCode::kNoMemory);
}

TEST(ManagedSpace, KnowsGranulesWithLocalPages) {
  auto made = ManagedSpace::create(Bytes(4 * kGranuleSize));
  ASSERT_TRUE(made) << made.error().text();
  ManagedSpace& space = **made;
  const GranuleIndex granule(2);
  const PageIndex one = firstPage(granule), other = one + (kPagesPerGranule - 1);
  const PageWord empty, local(PageState::kLocal, 0, 0, 0), evicting(PageState::kEvicting, 0, 0, 7);
  EXPECT_FALSE(space.hasLocal(granule));
  ASSERT_TRUE(changePage(space, one, empty, local) && changePage(space, other, empty, local));
  EXPECT_FALSE(space.hasLocal(granule + 1));
  // A flag is no move, and a change that is refused counts for nothing.
  ASSERT_TRUE(changePage(space, one, local, local.with(kFlagProbed)));
  EXPECT_FALSE(changePage(space, one, local, evicting));
  ASSERT_TRUE(changePage(space, one, local.with(kFlagProbed), evicting));
  EXPECT_TRUE(space.hasLocal(granule));
  ASSERT_TRUE(changePage(space, other, local, empty));
  EXPECT_FALSE(space.hasLocal(granule));
  ASSERT_TRUE(changePage(space, one, evicting, local));
  EXPECT_TRUE(space.hasLocal(granule));
}

TEST(ManagedSpace, UnusedPartsCostNothing) {
  auto made = ManagedSpace::create(Bytes(kTiB));
  ASSERT_TRUE(made) << made.error().text();
  ManagedSpace& space = **made;
  ASSERT_EQ(space.pageWords().size(), kTiB / kPageSize * sizeof(uint64_t));
  EXPECT_EQ(residentIn(space.pageWords()), 0u) << "an empty space of 1 TiB";

  // A GiB in the middle of the space, every page of it with a word.
  constexpr uint64_t kUsed = kGiB / kPageSize;
  const uint64_t first = kTiB / kPageSize / 2;
  for (uint64_t i = 0; i < kUsed; ++i) {
    ASSERT_TRUE(
        changePage(space, PageIndex(first + i), PageWord(), PageWord(PageState::kLocal, 0, 0, 0)));
  }
  const uint64_t paid = residentIn(space.pageWords());
  EXPECT_LE(paid, kGiB * 3 / 1000) << "metadata is more than 0.3 % of what is used";
  EXPECT_GE(paid, kUsed * sizeof(uint64_t));
  // Looking at words that were never written does not make them cost either.
  uint64_t states = 0;
  for (uint64_t page = 0; page < first; page += 512) {
    states += static_cast<uint64_t>(space.word(PageIndex(page)).state());
  }
  EXPECT_EQ(states, 0u);
  EXPECT_LE(residentIn(space.pageWords()), kGiB * 3 / 1000);
}

TEST(ManagedSpace, TheReservationCannotBeTouched) {
  auto space = ManagedSpace::create(Bytes(4 * kGranuleSize));
  ASSERT_TRUE(space);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile char*>((*space)->base()) = 1;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  // A sanitizer's runtime reports the SIGSEGV and exits with a code of its own.
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(ManagedSpace, NothingIsPlainMemoryAtFirst) {
  auto space = ManagedSpace::create(Bytes(4 * kGranuleSize));
  ASSERT_TRUE(space);
  EXPECT_FALSE((*space)->addresses().plain((*space)->base(), Bytes(kPageSize)));
  EXPECT_FALSE((*space)->addresses().plain((*space)->base() + 3 * kGranuleSize + kPageSize,
                                           Bytes(kPageSize)));
}

TEST(ManagedSpace, HighWaterOnlyRises) {
  auto space = ManagedSpace::create(Bytes(1024 * kGranuleSize));
  ASSERT_TRUE(space);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 10000; ++i) (*space)->raiseHighWater(PageIndex(i * 4 + thread));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*space)->highWater(), PageIndex(39999));
  (*space)->raiseHighWater(PageIndex(5));
  EXPECT_EQ((*space)->highWater(), PageIndex(39999));
}

TEST(ManagedSpace, WordsArePaidForByTheGranuleThatWasUsed) {
  auto made = ManagedSpace::create(Bytes(64 * kGranuleSize));
  ASSERT_TRUE(made) << made.error().text();
  ManagedSpace& space = **made;
  const GranuleIndex end(64);
  space.raiseHighWater(firstPage(end));
  EXPECT_EQ(space.metadata(), Bytes());
  EXPECT_EQ(space.nextWithPages(GranuleIndex(0), end), end);
  const PageWord empty, far(PageState::kDirect, 0, 1, 7);
  const PageIndex page = firstPage(GranuleIndex(40)) + 3;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(changePage(space, page, empty, far) && changePage(space, page + 1, empty, far));
    EXPECT_TRUE(space.hasPages(GranuleIndex(40)));
    EXPECT_FALSE(space.hasLocal(GranuleIndex(40)));
    EXPECT_EQ(space.nextWithPages(GranuleIndex(0), end), GranuleIndex(40));
    EXPECT_EQ(space.nextWithPages(GranuleIndex(41), end), end);
    ASSERT_TRUE(changePage(space, page, far, empty));
    EXPECT_TRUE(space.hasPages(GranuleIndex(40)));
    ASSERT_TRUE(changePage(space, page + 1, far, empty));
    EXPECT_FALSE(space.hasPages(GranuleIndex(40)));
    EXPECT_EQ(space.metadata(), Bytes(kPagesPerGranule * 8)) << "once paid, it is not given back";
  }
}

TEST(ManagedSpace, ALargeSpaceKeepsLowAddressesForThoseWhoAskForThem) {
  auto made = ManagedSpace::create(Bytes(256 * kGiB));
  ASSERT_TRUE(made) << made.error().text();
  ManagedSpace& space = **made;
  // Where something else lies there (a sanitizer's shadow), it is as any other.
  if (space.base() != 2 * kGiB) return;
  const auto anywhere = space.ranges().allocate(Bytes(kGranuleSize), Bytes(4 * kGiB));
  ASSERT_TRUE(anywhere);
  EXPECT_GE(space.base() + *anywhere, 96 * kGiB);
  EXPECT_EQ((space.base() + *anywhere) % (4 * kGiB), 0u);
  EXPECT_TRUE(space.ranges().allocateAt(kGiB, Bytes(kGiB)));
  EXPECT_FALSE(space.ranges().allocateAt(kGiB, Bytes(kGiB)));
}

TEST(ManagedSpace, OnlyOneOfManyThreadsChangesAWord) {
  auto space = ManagedSpace::create(Bytes(kGranuleSize));
  ASSERT_TRUE(space);
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
        winners +=
            changePage(**space, PageIndex(page), PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners.load(), static_cast<int>(kPagesPerGranule));
}

}  // namespace
}  // namespace tidepool
