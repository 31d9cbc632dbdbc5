// SPDX-License-Identifier: Apache-2.0
// Calls on stacks of Tidepool's own: results, nesting, threads, reuse.
#include "runtime/base/own_stack.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace tidepool {
namespace {

uintptr_t frame() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

TEST(OwnStack, ReturnsWhatTheCallReturnsAndCopiesWhatItCaptures) {
  const std::vector<int> numbers(1000, 7);
  const auto sum = [numbers] {
    int total = 0;
    for (int number : numbers) total += number;
    return std::make_unique<int>(total);
  };
  EXPECT_EQ(*OwnStack::run(sum), 7000);
  EXPECT_EQ(*OwnStack::runIf(false, sum), 7000);
  bool called = false;
  OwnStack::run([&called] { called = true; });
  EXPECT_TRUE(called);
}

#if defined(__x86_64__) && !defined(TIDEPOOL_SANITIZED)  // elsewhere on the caller's

/// Whether two frames of short calls may be on one stack.
bool near(uintptr_t one, uintptr_t other) {
  constexpr uintptr_t kFar = 256 * 1024;
  return one - other + kFar < 2 * kFar;
}

TEST(OwnStack, HoldsDeepCalls) {
  constexpr size_t kDeep = 900 * 1024;
  const char last = OwnStack::run([] {
    volatile char deep[kDeep];
    for (size_t i = 0; i < kDeep; i += 512) deep[i] = static_cast<char>(i >> 9);
    return static_cast<char>(deep[kDeep - 512] - deep[0]);
  });
  EXPECT_EQ(last, static_cast<char>((kDeep - 512) >> 9));
}

TEST(OwnStack, GivesACallWithinACallAnother) {
  struct Seen {
    uintptr_t outer, inner;
  };
  const Seen seen = OwnStack::run([] { return Seen{frame(), OwnStack::run(frame)}; });
  const Seen again = OwnStack::run([] { return Seen{frame(), OwnStack::run(frame)}; });
  EXPECT_FALSE(near(seen.outer, seen.inner));
  EXPECT_FALSE(near(seen.outer, frame()));
  // Those that were made are used again.
  EXPECT_TRUE(near(again.outer, seen.outer) || near(again.outer, seen.inner));
  EXPECT_TRUE(near(again.inner, seen.outer) || near(again.inner, seen.inner));
}

TEST(OwnStack, GivesThreadsDifferentOnes) {
  constexpr int kThreads = 8;
  std::atomic<int> inside{0};
  std::array<uintptr_t, kThreads> frames;
  std::vector<std::thread> threads;
  for (uintptr_t& mine : frames) {
    threads.emplace_back([&inside, &mine] {
      mine = OwnStack::run([&inside] {
        ++inside;
        while (inside.load() < kThreads) std::this_thread::yield();
        return frame();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<uintptr_t>(frames.begin(), frames.end()).size(), size_t{kThreads});
}

TEST(OwnStack, GoesOnInAForkedChild) {
  const int status = OwnStack::run([] {
    const pid_t child = fork();
    if (child == 0) _exit(OwnStack::run([] { return 5; }));
    int ended = -1;
    waitpid(child, &ended, 0);
    return ended;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

#endif

}  // namespace
}  // namespace tidepool
