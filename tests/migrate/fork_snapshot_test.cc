// SPDX-License-Identifier: Apache-2.0
// What fork() promises, in every tier: parent and child each go on with the memory as it was at one
// instant, whatever either writes, discards or forks later, and however the other ends. And that
// nothing is left of children: frames, descriptors, threads, mappings.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/entries.h"
#include "tests/migrate/fork_fixture.h"
#include "tests/rounds.h"

namespace tidepool {
namespace {

/// One byte from one process to another, in order.
class Signal {
 public:
  Signal() { EXPECT_EQ(pipe(ends_), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void give() { EXPECT_EQ(write(ends_[1], "", 1), 1); }
  void take() {
    char byte;
    EXPECT_EQ(read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2];
};

class ForkSnapshot : public Fork {
 protected:
  static uint64_t markOf(uint64_t page, uint64_t version) { return mark(page) + version * 1000; }
  void writeAll(uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) word(page) = markOf(page, version);
  }
  bool all(uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (word(page) != markOf(page, version)) return false;
    }
    return true;
  }
  uint64_t framesUsed() {
    test_.runtime->refreshStats();
    return test_.runtime->stats().tiers[1].used_bytes.load() / kPageSize;
  }
};

TEST_P(ForkSnapshot, WhatTheParentWritesLaterTheChildDoesNotSee) {
  Signal written;
  const pid_t child = start([&] {
    written.take();
    return all(0) ? 0 : 1;
  });
  writeAll(1);
  written.give();
  EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(all(1));
}

TEST_P(ForkSnapshot, WhatTheChildWritesIsItsOwn) {
  Signal written, seen;
  const pid_t child = start([&] {
    writeAll(1);
    written.give();
    seen.take();
    return all(1) ? 0 : 1;
  });
  written.take();
  EXPECT_TRUE(all(0));
  seen.give();
  EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(all(0));
}

TEST_P(ForkSnapshot, BothWriteAtOnce) {
  const pid_t child = start([&] {
    for (uint64_t version = 10; version < 13; ++version) {
      writeAll(version);
      if (!all(version)) return 1;
    }
    return 0;
  });
  for (uint64_t version = 20; version < 23; ++version) {
    writeAll(version);
    EXPECT_TRUE(all(version));
  }
  EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(all(22));
}

TEST_P(ForkSnapshot, GenerationsEachKeepTheirOwn) {
  // Each generation changes pages of its own, then forks the next, which sees all that came before.
  std::vector<uint64_t> versions(kPages, 0);
  const auto right = [&] {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (word(page) != markOf(page, versions[page])) return false;
    }
    return true;
  };
  constexpr uint64_t kGenerations = 5;
  for (uint64_t generation = 1; generation <= kGenerations; ++generation) {
    const pid_t child = fork();
    if (child != 0) {
      // Goes on writing while its descendants look.
      for (uint64_t page = 0; page < kPages; page += 3) {
        versions[page] = 100 + generation;
        word(page) = markOf(page, versions[page]);
      }
      const bool mine = right();
      const int theirs = end(child);
      if (generation > 1) _exit(mine && right() && theirs == 0 ? 0 : 1);
      EXPECT_TRUE(mine);
      EXPECT_EQ(theirs, 0);
      return;
    }
    alarm(60);
    for (uint64_t page = generation; page < kPages; page += kGenerations) {
      versions[page] = generation;
      word(page) = markOf(page, generation);
    }
    if (!right()) _exit(2);
  }
  _exit(0);
}

TEST_P(ForkSnapshot, IsOfOneInstant) {
  // A thread of the parent writes ever higher versions, page by page: at any instant a first part
  // of the pages has one version, and the rest the one before.
  std::atomic<bool> stop{false};
  writeAll(1);
  std::thread writer([&] {
    for (uint64_t version = 2; !stop.load(); ++version) {
      for (uint64_t page = 0; page < kPages && !stop.load(); ++page) {
        word(page) = markOf(page, version);
      }
    }
  });
  // AddressSanitizer's allocator is not safe to fork while a thread starts.
  while (word(0) == markOf(0, 1)) std::this_thread::yield();
  for (int i = 0; i < rounds(4, 100); ++i) {
    const int status = inChild([&] {
      const uint64_t newest = (word(0) - mark(0)) / 1000;
      for (int look = 0; look < 2; ++look) {
        uint64_t version = newest;
        for (uint64_t page = 0; page < kPages; ++page) {
          if (word(page) == markOf(page, version)) continue;
          if (version != newest || word(page) != markOf(page, newest - 1)) return 1 + look;
          version = newest - 1;
        }
      }
      return 0;
    });
    EXPECT_EQ(status, 0) << i;
  }
  stop = true;
  writer.join();
}

// A granule of a direct tier that is written after the fork is copied to a home of the writer's
// own, and mapped anew: what the program made read-only there has to stay so.
TEST_P(ForkSnapshot, WhatIsReadOnlyStaysSoWhenItsGranuleIsCopied) {
  constexpr uint64_t kEvery = 61;
  const auto closed = [](uint64_t page) { return page % kEvery == 7; };
  for (uint64_t page = 7; page < kPages; page += kEvery) {
    void* const address = const_cast<uint64_t*>(&word(page));
    ASSERT_TRUE(test_.runtime->protect(address, Bytes(kPageSize), PROT_READ));
  }
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  const auto holds = [&](uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (word(page) != markOf(page, closed(page) ? 0 : version)) return false;
      // The kernel writes where the program may.
      if (closed(page) && read(zeros, const_cast<uint64_t*>(&word(page)), 8) != -1) return false;
    }
    return true;
  };
  const auto writeOpen = [&](uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) {
      if (!closed(page)) word(page) = markOf(page, version);
    }
  };
  const uint64_t frames_before = framesUsed();
  Signal written, seen;
  const pid_t child = start([&] {
    writeOpen(1);
    written.give();
    seen.take();
    return holds(1) ? 0 : 1;
  });
  written.take();
  if (GetParam().far == Far::kDirect) {
    EXPECT_GT(framesUsed(), frames_before) << "nothing was copied";
  }
  EXPECT_TRUE(holds(0));
  writeOpen(2);
  seen.give();
  EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(holds(2));
  close(zeros);
}

TEST_P(ForkSnapshot, DiscardingIsEachOnesOwn) {
  Signal discarded;
  const pid_t child = start([&] {
    if (!test_.runtime->discard(words_, Bytes(kPages / 2 * kPageSize))) return 1;
    for (uint64_t page = 0; page < kPages / 2; ++page) {
      if (word(page) != 0) return 2;
      word(page) = markOf(page, 7);
    }
    discarded.take();
    for (uint64_t page = 0; page < kPages; ++page) {
      if (word(page) != markOf(page, page < kPages / 2 ? 7 : 0)) return 3;
    }
    return test_.runtime->release(words_, Bytes(kPages * kPageSize)) ? 0 : 4;
  });
  EXPECT_TRUE(all(0));
  const uint64_t quarter = kPages / 4 * 3;
  ASSERT_TRUE(test_.runtime->discard(const_cast<uint64_t*>(words_) + quarter * kWords,
                                     Bytes((kPages - quarter) * kPageSize)));
  discarded.give();
  EXPECT_EQ(end(child), 0);
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(word(page), page < quarter ? markOf(page, 0) : 0) << page;
  }
}

TEST_P(ForkSnapshot, ReleasedByOneItIsStillTheOthers) {
  Signal released;
  const pid_t child = start([&] {
    released.take();
    return all(0) ? 0 : 1;
  });
  ASSERT_TRUE(test_.runtime->release(words_, Bytes(kPages * kPageSize)));
  // New data goes where the old was, if anything is wrong with the frames.
  auto again = test_.runtime->allocate(Bytes(kPages * kPageSize), Bytes(kGranuleSize));
  ASSERT_TRUE(again);
  words_ = static_cast<uint64_t*>(*again);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(word(page), 0u) << page;
  writeAll(5);
  released.give();
  EXPECT_EQ(end(child), 0);
  EXPECT_TRUE(all(5));
}

TEST_P(ForkSnapshot, TheFramesOfTheKilledComeBack) {
  writeAll(1);
  for (int i = 0; i < 12; ++i) {  // far more than the tier has room for, were they kept
    Signal busy;
    const pid_t child = start([&] {
      writeAll(2);
      busy.give();
      for (uint64_t version = 3;; ++version) writeAll(version);
      return 1;
    });
    busy.take();
    kill(child, SIGKILL);
    EXPECT_EQ(end(child), -SIGKILL);
    writeAll(static_cast<uint64_t>(4 + i));
  }
  EXPECT_TRUE(all(15));
  ASSERT_TRUE(test_.runtime->release(words_, Bytes(kPages * kPageSize)));
  EXPECT_EQ(inChild([] { return 0; }), 0);  // so that staging is emptied
  while (framesUsed() > 0) sched_yield();   // the test's time-out is the limit
  EXPECT_EQ(test_.runtime->stats().tiers[0].used_bytes.load(), 0u) << "and nothing of the budget";
  EXPECT_EQ(test_.runtime->stats().error_count.load(), 0u) << test_.runtime->stats().errors[0];
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

TEST_P(ForkSnapshot, CyclesLeaveNothing) {
  const int cycles = rounds(200, 10'000);
  size_t fds = 0, threads = 0, maps = 0;
  for (int i = 0; i < cycles; ++i) {
    if (i == 20) {
      fds = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
      maps = mappings();
    }
    const uint64_t page = static_cast<uint64_t>(i) * 37 % kPages;
    ASSERT_EQ(inChild([&] {
                const uint64_t other = (page + kPages / 2) % kPages;
                word(page) = 1;
                return word(other) == mark(other) ? 0 : 1;
              }),
              0)
        << i;
    ASSERT_EQ(word(page), mark(page));
  }
  // A child may end with writes under way: the first such makes the connection that fences them
  // off, which is kept until a later one has taken its place.
  const size_t fences = GetParam().far == Far::kRemote ? 2 : 0;
  EXPECT_LE(entries("/proc/self/fd"), fds + fences);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  if (GetParam().far == Far::kRemote) {  // a direct tier maps what it moves, run by run
    EXPECT_LE(mappings(), maps + 4);
  }
  EXPECT_TRUE(all(0));
}

INSTANTIATE_TEST_SUITE_P(Tiers, ForkSnapshot,
                         testing::Values(Setup{Far::kRemote, Eviction::kMove},
                                         Setup{Far::kRemote, Eviction::kCopy},
                                         Setup{Far::kDirect, Eviction::kMove}),
                         setupName);

/// A runtime in a process of its own: what is left when that process ends.
TEST(ForkOrphan, ADaemonKeepsTheRegionWhenItsParentsEndAtOnce) {
  ServerProcess server(Bytes(64 * kMiB));
  ASSERT_NE(server.port(), 0);
  int answer[2];
  ASSERT_EQ(pipe(answer), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    Options options;
    options.dram = Bytes(4 * kMiB);
    options.budget_scope = BudgetScope::kManaged;
    options.space = Bytes(kGiB);
    options.far_count = 1;
    options.far[0].kind = farKind("remote");
    options.far[0].size = Bytes(48 * kMiB);
    snprintf(options.far[0].target, sizeof options.far[0].target, "127.0.0.1:%u", server.port());
    auto runtime = Runtime::start(options);
    if (!runtime) _exit(1);
    auto memory = (*runtime)->allocate(Bytes(16 * kMiB), Bytes(kGranuleSize));
    if (!memory) _exit(2);
    auto* words = static_cast<volatile uint64_t*>(*memory);
    const uint64_t pages = 16 * kMiB / kPageSize;
    for (uint64_t page = 0; page < pages; ++page) words[page * kWords] = mark(page);
    if (fork() != 0) _exit(0);
    if (fork() != 0) _exit(0);
    alarm(60);
    sleep(4);  // the server frees a region 2 seconds after its last connection has gone
    char right = 'y';
    for (uint64_t page = 0; page < pages; ++page) {
      if (words[page * kWords] != mark(page)) right = 'n';
    }
    _exit(write(answer[1], &right, 1) == 1 ? 0 : 1);
  }
  close(answer[1]);
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  char right = '?';
  EXPECT_EQ(read(answer[0], &right, 1), 1) << "the daemon died";
  EXPECT_EQ(right, 'y');
  close(answer[0]);
}

}  // namespace
}  // namespace tidepool
