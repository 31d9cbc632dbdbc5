// SPDX-License-Identifier: Apache-2.0
// The follower goes where the thread is that it serves: after two equal looks, or at once if it is
// told that the thread went elsewhere.
#include "runtime/os/cpu_follower.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tidepool::os {
namespace {

void bindTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

TEST(CpuFollower, GoesAtOnceWhereItIsToldThatTheThreadWent) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  const int home = cpus.front(), other = cpus.back();
  std::atomic<int> wanted{home}, at{-1}, id{0};
  std::thread program([&] {
    id = gettid();
    for (int cpu = wanted; cpu >= 0; cpu = wanted) {
      bindTo(cpu);
      at = cpu;
      wanted.wait(cpu);
    }
  });
  std::thread service([&] {
    while (at != home) std::this_thread::yield();
    CpuFollower follower;
    for (int i = 0; i < 32; ++i) follower.served(id, false);
    EXPECT_EQ(follower.bound(), home);
    wanted = other;
    wanted.notify_one();
    while (at != other) std::this_thread::yield();
    follower.served(id, false);
    EXPECT_EQ(follower.bound(), home) << "a look at every fault would cost as much as the fault";
    follower.served(id, true);
    EXPECT_EQ(follower.bound(), other);
    // A hint that is wrong costs a look, and changes nothing.
    for (int i = 0; i < 200; ++i) follower.served(id, true);
    EXPECT_EQ(follower.bound(), other);
  });
  service.join();
  wanted = -1;
  wanted.notify_one();
  program.join();
}

TEST(CpuFollower, BelongsToNobodyWhereSeveralThreadsWaitTogether) {
  // A thread that ends where it began: the follower binds the one that calls it.
  std::thread service([] {
    bindTo(sched_getcpu());
    CpuFollower follower;
    for (int i = 0; i < 32; ++i) follower.served(gettid(), false);
    const int home = follower.bound();
    EXPECT_EQ(home, sched_getcpu());
    for (int i = 0; i < 15; ++i) follower.servedSeveral();
    EXPECT_EQ(follower.bound(), home) << "now and then two come together";
    follower.served(gettid(), false);
    for (int i = 0; i < 15; ++i) follower.servedSeveral();
    EXPECT_EQ(follower.bound(), home);
    follower.servedSeveral();
    EXPECT_EQ(follower.bound(), -1);
    for (int i = 0; i < 32; ++i) follower.served(gettid(), false);
    EXPECT_EQ(follower.bound(), home);
  });
  service.join();
}

}  // namespace
}  // namespace tidepool::os
