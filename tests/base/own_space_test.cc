// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/own_space.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

constexpr uint64_t kUnit = OwnSpace::kUnit;
constexpr Bytes kPart(64 * kUnit);

/// Makes a range that was taken usable, as its owner would.
void use(uintptr_t address, Bytes size) {
  ASSERT_EQ(raw::mmap(reinterpret_cast<void*>(address), size.value(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            reinterpret_cast<void*>(address));
}

/// The protection of what is mapped at an address, as /proc/self/maps has it; "" for nothing.
std::string rightsAt(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0, end = 0;
    char rights[8] = {};
    if (sscanf(line.c_str(), "%lx-%lx %7s", &start, &end, rights) == 3 && start <= address &&
        address < end) {
      return rights;
    }
  }
  return "";
}

/// The flags that /proc/self/smaps has for what is mapped at an address, such as "rd wr mr dd".
[[maybe_unused]] std::string flagsAt(uintptr_t address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0, end = 0;
    char rights[8] = {};
    if (sscanf(line.c_str(), "%lx-%lx %7s", &start, &end, rights) == 3) {
      inside = start <= address && address < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(OwnSpace, TellsHowMuchOfARangeIsItsOwn) {
  static OwnSpace space(kPart);
  const uintptr_t taken = space.take(Bytes(kUnit), Bytes(kPageSize));
  ASSERT_NE(taken, 0u);
  const OwnSpace::Span all = space.spanAt(taken, 2 * kPart.value());
  EXPECT_TRUE(all.own);
  EXPECT_GE(all.size, kUnit);
  EXPECT_LE(all.size, kPart.value());
  EXPECT_TRUE(space.contains(taken + all.size - 1));
  EXPECT_FALSE(space.contains(taken + all.size));
  EXPECT_EQ(space.spanAt(taken, kPageSize).size, kPageSize);
  const OwnSpace::Span behind = space.spanAt(taken + all.size, kPageSize);
  EXPECT_FALSE(behind.own);
  EXPECT_EQ(behind.size, kPageSize);
  const OwnSpace::Span before = space.spanAt(kPageSize, taken);
  EXPECT_FALSE(before.own);
  EXPECT_TRUE(space.contains(kPageSize + before.size));
  EXPECT_FALSE(space.contains(kPageSize + before.size - 1));
}

TEST(OwnSpace, GivesRangesOfItsOwnAndKeepsThem) {
  static OwnSpace space(kPart);
  const uintptr_t one = space.take(Bytes(kPageSize), Bytes(kPageSize));
  const uintptr_t two = space.take(Bytes(3 * kUnit), Bytes(kPageSize));
  ASSERT_NE(one, 0u);
  ASSERT_NE(two, 0u);
  EXPECT_TRUE(two >= one + kUnit || one >= two + 3 * kUnit);
  EXPECT_TRUE(space.contains(one));
  EXPECT_TRUE(space.contains(two + 3 * kUnit - 1));
  EXPECT_FALSE(space.contains(reinterpret_cast<uintptr_t>(&space)));
  use(two, Bytes(3 * kUnit));
  memset(reinterpret_cast<void*>(two), 1, 3 * kUnit);
  space.giveBack(two, Bytes(3 * kUnit));
  // Not a hole: the kernel gives it to nobody.
  EXPECT_EQ(rightsAt(two), "---p");
  EXPECT_EQ(space.take(Bytes(2 * kUnit + 1), Bytes(kPageSize)), two);
}

TEST(OwnSpace, AlignsAndGrows) {
  static OwnSpace space(kPart);
  for (const Bytes alignment : {Bytes(kPageSize), Bytes(kGranuleSize), Bytes(kGiB)}) {
    for (const Bytes size : {Bytes(1), Bytes(kUnit), Bytes(kGranuleSize), Bytes(3 * kGiB)}) {
      const uintptr_t address = space.take(size, alignment);
      ASSERT_NE(address, 0u);
      EXPECT_EQ(address % alignment.value(), 0u);
      EXPECT_TRUE(space.contains(address));
      EXPECT_TRUE(space.contains(address + size.value() - 1));
    }
  }
}

TEST(OwnSpace, SaysWhenThereIsNoMore) {
  static OwnSpace space(kPart);
  EXPECT_EQ(space.take(Bytes(uint64_t{1} << 50), Bytes(kPageSize)), 0u);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_NE(space.take(Bytes(kUnit), Bytes(kPageSize)), 0u);
}

TEST(OwnSpaceDeathTest, FindsRangesGivenBackTwice) {
  static OwnSpace space(kPart);
  const uintptr_t address = space.take(Bytes(kUnit), Bytes(kPageSize));
  space.giveBack(address, Bytes(kUnit));
  EXPECT_DEATH(space.giveBack(address, Bytes(kUnit)), "broken invariant");
}

/// A limit on address space is the program's: a small share of it is taken at a time.
TEST(OwnSpace, IsModestUnderALimit) {
  const pid_t child = fork();
  if (child == 0) {
    static OwnSpace space(Bytes(256 * kGiB));
    unsigned long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * kPageSize + 4 * kGiB;
    rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
    if (space.take(Bytes(kUnit), Bytes(kPageSize)) == 0) _exit(2);
    // What it asks for itself is not beyond it because the usual part is.
    if (space.take(Bytes(kGiB), Bytes(kPageSize)) == 0) _exit(3);
    void* const rest = mmap(nullptr, 2 * kGiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _exit(rest == MAP_FAILED ? 4 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
#ifndef TIDEPOOL_SANITIZED
  EXPECT_EQ(status, 0);
#endif
}

/// Against a model: no two ranges that are out overlap, and what comes back is found again.
RC_GTEST_PROP(OwnSpaceProperty, RangesNeverOverlap, ()) {
  static OwnSpace space(kPart);
  std::map<uintptr_t, uint64_t> out;
  const auto steps = *rc::gen::container<std::vector<std::tuple<bool, int, int, int>>>(
      rc::gen::tuple(rc::gen::arbitrary<bool>(), rc::gen::inRange(1, 140), rc::gen::inRange(0, 6),
                     rc::gen::inRange(0, 1000)));
  for (const auto& [give, units, align, which] : steps) {
    if (give && !out.empty()) {
      auto at = std::next(out.begin(), which % static_cast<int>(out.size()));
      space.giveBack(at->first, Bytes(at->second));
      out.erase(at);
      continue;
    }
    // Not whole units, most of them.
    const uint64_t size = static_cast<uint64_t>(units) * kUnit - static_cast<uint64_t>(which);
    const uint64_t alignment = kPageSize << (2 * align);
    const uintptr_t address = space.take(Bytes(size), Bytes(alignment));
    RC_ASSERT(address != 0u);
    RC_ASSERT(address % alignment == 0u);
    RC_ASSERT(space.contains(address) && space.contains(address + size - 1));
    const auto next = out.lower_bound(address);
    RC_ASSERT(next == out.end() || next->first >= address + size);
    if (next != out.begin()) {
      const auto before = std::prev(next);
      RC_ASSERT(before->first + before->second <= address);
    }
    out.emplace(address, size);
  }
  for (const auto& [address, size] : out) space.giveBack(address, Bytes(size));
}

TEST(OwnSpace, IsForManyThreads) {
  static OwnSpace space(kPart);
  constexpr int kThreads = 4, kRounds = 300;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int id = 1; id <= kThreads; ++id) {
    threads.emplace_back([&, id] {
      for (int round = 0; round < kRounds; ++round) {
        const Bytes size(kUnit * static_cast<uint64_t>(1 + (round * 7 + id) % 9));
        const uintptr_t address = space.take(size, Bytes(kPageSize));
        use(address, size);
        auto* const words = reinterpret_cast<std::atomic<int>*>(address);
        const size_t count = size.value() / kPageSize;
        for (size_t i = 0; i < count; ++i) words[i * 1024].store(id);
        std::this_thread::yield();
        for (size_t i = 0; i < count; ++i) wrong += words[i * 1024].load() != id;
        space.giveBack(address, size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Sanitizers do not take copies of a process made in a signal handler, and have the kernel choose
// where mappings lie.
#ifndef TIDEPOOL_SANITIZED
/// A child that a signal handler makes in the midst of anything finds no lock that is held.
OwnSpace* interrupted = nullptr;
std::atomic<int> children_failed{0};

void forkInHandler(int) {
  const pid_t child = static_cast<pid_t>(raw::call(SYS_fork));
  if (child == 0) {
    alarm(10);
    const uintptr_t address = interrupted->take(Bytes(3 * kUnit), Bytes(kPageSize));
    if (address == 0) _exit(1);
    interrupted->giveBack(address, Bytes(3 * kUnit));
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) ++children_failed;
}

TEST(OwnSpace, GoesOnInACopyMadeAtAnyMoment) {
  static OwnSpace space(kPart);
  interrupted = &space;
  struct sigaction action {};
  action.sa_handler = forkInHandler;
  sigaction(SIGUSR1, &action, nullptr);
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    while (!stop.load()) {
      const uintptr_t address = space.take(Bytes(5 * kUnit), Bytes(kGranuleSize));
      space.giveBack(address, Bytes(5 * kUnit));
    }
  });
  for (int i = 0; i < 200; ++i) pthread_kill(worker.native_handle(), SIGUSR1), usleep(200);
  stop.store(true);
  worker.join();
  EXPECT_EQ(children_failed.load(), 0);
}

TEST(Mapping, LiesInOwnSpaceAndInNoCoreDump) {
  const int fd = memfd_create("mapped", 0);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  for (auto make : {+[](int) { return Mapping::anonymous(Bytes(kGranuleSize)); },
                    +[](int file) { return Mapping::sharedFile(file, Bytes(), Bytes(1 << 20)); },
                    +[](int) { return Mapping::sharedAnonymous(Bytes(kPageSize)); }}) {
    auto mapping = make(fd);
    ASSERT_TRUE(mapping.has_value());
    const auto address = reinterpret_cast<uintptr_t>(mapping->data());
    mapping->data()[0] = std::byte{1};
    EXPECT_TRUE(ownSpace().contains(address));
    EXPECT_NE(flagsAt(address).find(" dd"), std::string::npos) << flagsAt(address);
    *mapping = Mapping();
    EXPECT_EQ(rightsAt(address), "---p");
  }
  close(fd);
}
#endif

TEST(Mapping, ReservesAsItIsAsked) {
  auto range = Mapping::reserved(Bytes(3 * kGranuleSize), Bytes(kGranuleSize));
  ASSERT_TRUE(range.has_value());
  const auto address = reinterpret_cast<uintptr_t>(range->data());
  EXPECT_EQ(address % kGranuleSize, 0u);
  EXPECT_EQ(rightsAt(address), "---p");
  EXPECT_EQ(rightsAt(address + 3 * kGranuleSize - 1), "---p");
}

}  // namespace
}  // namespace tidepool
