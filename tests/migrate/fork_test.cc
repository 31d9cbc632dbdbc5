// SPDX-License-Identifier: Apache-2.0
// fork(), vfork() and posix_spawn() while pages migrate: the child sees what the parent had, in far
// memory too, or (where direct tiers cannot be write-protected) does not reach it, but never reads
// zeros there; it can allocate, free, fork and end; the parent does not notice.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/migrate/fork_fixture.h"

extern char** environ;

namespace tidepool {
namespace {

constexpr int kSegv = 66;

// One child looks at one page: a handler ends it at the signal.
TEST_P(Fork, AChildSeesTheBytesOrAnEnd) {
  int seen = 0, refused = 0;
  for (uint64_t page = 0; page < kPages; page += kPages / 61) {
    const int status = inChild([&] {
      signal(SIGSEGV, [](int) { _exit(kSegv); });
      signal(SIGBUS, [](int) { _exit(3); });
      return word(page) == mark(page) ? 0 : word(page) == 0 ? 1 : 2;
    });
    ASSERT_TRUE(status == 0 || status == kSegv) << "page " << page << ": " << status;
    (status == 0 ? seen : refused) += 1;
  }
  EXPECT_GT(seen, 0);
  if (GetParam().far == Far::kRemote || GetParam().eviction == Eviction::kMove) {
    EXPECT_EQ(refused, 0);
  } else {
    EXPECT_GT(refused, 0) << "nothing was far: the test is too small";
  }
  EXPECT_TRUE(intact());
}

TEST_P(Fork, AChildAllocatesFreesAndEnds) {
  const int status = inChild([&] {
    for (int round = 0; round < 20; ++round) {
      auto memory = test_.runtime->allocate(Bytes(4 * kMiB), Bytes(kGranuleSize));
      if (!memory) return 1;
      auto* bytes = static_cast<unsigned char*>(*memory);
      for (uint64_t at = 0; at < 4 * kMiB; at += kPageSize) {
        if (bytes[at] != 0) return 2;
        bytes[at] = 1;
      }
      if (!test_.runtime->discard(bytes, Bytes(kMiB)) || bytes[0] != 0) return 3;
      if (!test_.runtime->release(bytes, Bytes(4 * kMiB))) return 4;
    }
    // What the parent allocated, far pages included, is the child's to give back.
    if (!test_.runtime->release(words_, Bytes(kPages * kPageSize / 2))) return 5;
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(intact());
}

TEST_P(Fork, AChildMayDestroyTheRuntime) {
  const int status = inChild([&] {
    test_.runtime.reset();  // its threads are not in the child: nothing to join
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(intact()) << "and the parent's connections live";
}

TEST_P(Fork, AChildForksToo) {
  const int status = inChild([&] {
    const pid_t child = fork();
    if (child == 0) _exit(test_.runtime->allocate(Bytes(kMiB), Bytes(kPageSize)) ? 7 : 8);
    int inner = 0;
    return waitpid(child, &inner, 0) == child && WIFEXITED(inner) ? WEXITSTATUS(inner) : 1;
  });
  EXPECT_EQ(status, 7);
}

TEST_P(Fork, ManyForksWhileMigrating) {
  std::atomic<bool> stop{false};
  std::atomic<bool> wrong{false};
  std::array<std::atomic<uint64_t>, 2> visits{};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < visits.size(); ++thread) {
    threads.emplace_back([&, thread] {
      // Every page in turn, so that there is always something to bring in and to take out.
      for (uint64_t page = thread; !stop.load(); page = (page + 2) % kPages) {
        if (word(page) != mark(page)) wrong = true;
        if (page % 5 == 0) word(page) = mark(page);
        visits[thread].fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  // AddressSanitizer's allocator is not safe to fork while a thread starts.
  for (auto& of_thread : visits) {
    while (of_thread.load() == 0) std::this_thread::yield();
  }
  for (int i = 0; i < 200 && !wrong; ++i) {
    ASSERT_EQ(inChild([&] {
                auto memory = test_.runtime->allocate(Bytes(64 * kPageSize), Bytes(kPageSize));
                if (!memory) return 1;
                static_cast<volatile char*>(*memory)[0] = 1;
                return test_.runtime->release(*memory, Bytes(64 * kPageSize)) ? 0 : 2;
              }),
              0)
        << i;
    const auto total = [&] { return visits[0].load() + visits[1].load(); };
    const uint64_t before = total();
    while (i % 10 == 0 && total() < before + 100) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  EXPECT_TRUE(intact());
  EXPECT_EQ(test_.runtime->stats().lost_pages.load(), 0u);
}

TEST_P(Fork, AfterAForkPagesThatAreOnlyReadStillLeave) {
  // fork() makes every local page shared with the child; none may stay behind for that.
  EXPECT_EQ(inChild([] { return 0; }), 0);
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(intact());
  EXPECT_EQ(test_.runtime->stats().error_count.load(), 0u) << test_.runtime->stats().errors[0];
}

TEST_P(Fork, SpawnsWhileMigrating) {
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    for (uint64_t page = 0; !stop.load(); page = (page + 1) % kPages) {
      if (word(page) != mark(page)) ADD_FAILURE() << "page " << page;
    }
  });
  for (int i = 0; i < 20; ++i) {
    char* const arguments[] = {const_cast<char*>("true"), nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawnp(&child, "true", nullptr, nullptr, arguments, environ), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    child = vfork();
    if (child == 0) {
      execvp("true", arguments);
      _exit(9);
    }
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  reader.join();
  EXPECT_TRUE(intact());
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, Fork,
    testing::Values(Setup{Far::kRemote, Eviction::kMove},
                    Setup{.far = Far::kRemote, .eviction = Eviction::kMove, .compress = true},
                    Setup{Far::kRemote, Eviction::kCopy}, Setup{Far::kDirect, Eviction::kMove},
                    Setup{Far::kDirect, Eviction::kCopy}),
    setupName);

}  // namespace
}  // namespace tidepool
