// SPDX-License-Identifier: Apache-2.0
// Workers: every task is done once, by any free thread; in one's own threads and in a team's.
#include "allocator/table/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/atomic_wait.h"

namespace tidepool {
namespace {

/// Threads that begin with each call, of which too few may come.
constexpr size_t kTeam = 4;
thread_local size_t team_number = 0;

void runAll(void (*act)(void*), void* argument, size_t threads) {
  std::vector<std::thread> others;
  for (size_t number = 1; number < threads; ++number) {
    others.emplace_back([=] {
      team_number = number;
      act(argument);
    });
  }
  act(argument);
  for (std::thread& other : others) other.join();
}

void runInCaller(void (*act)(void*), void* argument, size_t) { act(argument); }

constexpr ThreadTeam kWhole{runAll, [] { return team_number; }, [] { return kTeam; }};
constexpr ThreadTeam kCallerAlone{runInCaller, [] { return team_number; }, [] { return kTeam; }};

class WorkersTest : public ::testing::TestWithParam<const ThreadTeam*> {
 protected:
  WorkersTest() { Workers::borrow(GetParam()); }
  ~WorkersTest() override { Workers::borrow(nullptr); }
};

TEST_P(WorkersTest, EveryTaskIsDoneOnceByAKnownWorker) {
  for (const size_t threads : {1, 2, 3, 4}) {
    Workers workers(threads, 0);
    for (const size_t tasks : {0, 1, 2, 3, 5, 8, 100, 1001}) {
      std::vector<std::atomic<int>> times(tasks);
      std::atomic<int> strangers{0};
      workers.run(tasks, [&](size_t task, size_t worker) {
        times[task].fetch_add(1, std::memory_order_relaxed);
        if (worker >= threads) strangers.fetch_add(1, std::memory_order_relaxed);
      });
      for (size_t task = 0; task < tasks; ++task) EXPECT_EQ(times[task], 1) << task;
      EXPECT_EQ(strangers, 0) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST_P(WorkersTest, CallsFromSeveralThreadsTakeTurns) {
  constexpr size_t kCallers = 3, kCalls = 200, kTasks = 7;
  Workers workers(2, 0);
  std::atomic<size_t> done{0};
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (size_t call = 0; call < kCalls; ++call) {
        workers.run(kTasks, [&](size_t, size_t) { done.fetch_add(1, std::memory_order_relaxed); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, kCallers * kCalls * kTasks);
}

std::string nameOf(const ::testing::TestParamInfo<const ThreadTeam*>& way) {
  if (way.param == nullptr) return "Own";
  return way.param == &kWhole ? "Team" : "CallerOfATeam";
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkersTest, ::testing::Values(nullptr, &kWhole, &kCallerAlone),
                         nameOf);

TEST(SharedTasks, WhoIsDoneTakesWhatAnotherHasLeft) {
  constexpr uint32_t kTasks = 64;
  Workers workers(2, 0);
  // The first thread stays with its task until all others are done, half of which were its own.
  std::atomic<uint32_t> begun{0}, others_done{0};
  workers.run(kTasks, [&](size_t, size_t) {
    if (begun.fetch_add(1) != 0) {
      others_done.fetch_add(1);
      wakeWaiters(others_done);
      return;
    }
    for (uint32_t done = others_done; done != kTasks - 1; done = others_done) {
      waitWhile(others_done, done);
    }
  });
  EXPECT_EQ(others_done, kTasks - 1);
}

TEST(SharedTasks, NeighboursAreDoneByOneWorkerWhileAllAreBusy) {
  constexpr size_t kTasks = 64;
  Workers workers(2, 0);
  std::vector<size_t> by(kTasks);
  std::atomic<uint32_t> started{0};
  workers.run(kTasks, [&](size_t task, size_t worker) {
    by[task] = worker;
    // Nobody goes on before both have begun; then they go in step as far as that is possible.
    if (task == 0 || task == kTasks / 2) {
      started.fetch_add(1);
      wakeWaiters(started);
      for (uint32_t now = started; now < 2; now = started) waitWhile(started, now);
    }
  });
  size_t changes = 0;
  for (size_t task = 1; task < kTasks; ++task) changes += by[task] != by[task - 1] ? 1 : 0;
  // One between the shares, and one more where the quicker helped the slower with its last ones.
  EXPECT_GE(changes, 1u);
  EXPECT_LE(changes, 2u);
}

std::atomic<uint32_t> tasks_done{0}, came_early{0};
constexpr uint32_t kTeamTasks = 64;

/// Counts who comes back from a call before all of its tasks are done.
void noteComingBack(void (*act)(void*), void* argument, size_t threads) {
  struct Both {
    void (*act)(void*);
    void* argument;
  } both{act, argument};
  const auto note = [](void* of) {
    const Both& call = *static_cast<const Both*>(of);
    call.act(call.argument);
    if (tasks_done != kTeamTasks) came_early.fetch_add(1);
  };
  runAll(note, &both, threads);
}

TEST(Team, WhoIsDoneStaysUntilAllTasksAre) {
  constexpr ThreadTeam team{noteComingBack, [] { return team_number; }, [] { return kTeam; }};
  Workers::borrow(&team);
  Workers workers(2, 0);
  for (int call = 0; call < 50; ++call) {
    tasks_done = 0;
    std::atomic<uint32_t> begun{0};
    workers.run(kTeamTasks, [&](size_t, size_t) {
      // The first goes on when no other is left.
      if (begun.fetch_add(1) == 0) {
        for (uint32_t done = tasks_done; done != kTeamTasks - 1; done = tasks_done) {
          waitWhile(tasks_done, done);
        }
      }
      tasks_done.fetch_add(1);
      wakeWaiters(tasks_done);
    });
    EXPECT_EQ(tasks_done, kTeamTasks);
  }
  EXPECT_EQ(came_early, 0u);
  Workers::borrow(nullptr);
}

TEST(Team, OneThatIsTooSmallIsNotUsed) {
  constexpr ThreadTeam small{runAll, [] { return team_number; }, [] { return size_t{1}; }};
  Workers::borrow(&small);
  Workers workers(2, 0);
  std::atomic<uint32_t> here{0};
  workers.run(2, [&](size_t, size_t) {  // both are needed, or neither returns
    here.fetch_add(1);
    wakeWaiters(here);
    for (uint32_t now = here; now < 2; now = here) waitWhile(here, now);
  });
  EXPECT_EQ(here, 2u);
  Workers::borrow(nullptr);
}

}  // namespace
}  // namespace tidepool
