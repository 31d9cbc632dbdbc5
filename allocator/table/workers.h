// SPDX-License-Identifier: Apache-2.0
// A few threads that share the tasks of one call: run() returns when all are done. The caller works
// too. Thread-safe: calls from several threads take turns. In a child of fork() the caller works
// alone. Tasks must not call run().
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace tidepool {

/// Threads that another library of the process keeps, OpenMP's say: after each of their loops they
/// stay awake for a while, and other threads that work beside them wait for processors.
struct ThreadTeam {
  /// Calls act(argument) in so many threads at the same time, the caller's among them, and returns
  /// when all have returned. Fewer may come.
  void (*run)(void (*act)(void* argument), void* argument, size_t threads) = nullptr;
  /// Which of them the calling one is, from 0 on.
  size_t (*number)() = nullptr;
  /// How many it has for the calling thread. It keeps them if all are asked for each time.
  size_t (*threads)() = nullptr;
};

class Workers {
 public:
  /// To wake another thread up takes about as long as so many look-ups of rows in memory.
  static constexpr uint64_t kLeastShared = 4096;
  static constexpr uint64_t kMuchWork = ~uint64_t{0};

  /// `threads` in all, the caller counted: 1 starts none. What takes less time than `least_shared`
  /// look-ups the caller does alone; 0, as tests have it: nothing.
  explicit Workers(size_t threads, uint64_t least_shared = kLeastShared);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t threads() const { return threads_.size() + 1; }

  /// Tasks are shared among the threads of this team, which stays for good, where it has as many as
  /// are wanted, in place of threads of their own. For all Workers of this process, not of its
  /// children; null: none. Thread-safe: calls under way go on as they are.
  static void borrow(const ThreadTeam* team);

  /// Calls act(task, worker) for every task from 0 to tasks - 1, fewer than 2^32, in any order;
  /// worker < threads(). `work`: what all tasks take together, in look-ups. Neighbours are done by
  /// one worker, as far as all are busy to the end then: what one of them reads another finds in
  /// that processor's cache.
  template <typename Act>
  void run(size_t tasks, Act act, uint64_t work = kMuchWork) {
    if (work < least_shared_) {
      for (size_t task = 0; task < tasks; ++task) act(task, 0);
      return;
    }
    runTasks(
        tasks,
        [](void* self, size_t task, size_t worker) { (*static_cast<Act*>(self))(task, worker); },
        &act);
  }

 private:
  using Task = void (*)(void* argument, size_t task, size_t worker);
  void runTasks(size_t tasks, Task task, void* argument) TP_EXCLUDES(turn_);
  bool runInTeam();
  void serve(size_t worker);
  uint32_t takeTasks(size_t worker);
  void awaitOthers(uint32_t taken);
  void shareOut(size_t tasks);

  const int pid_;
  const uint64_t least_shared_;
  std::vector<std::thread> threads_;
  Mutex turn_;
  // Of the call under way. Written by its caller before round_ goes up (release), read by workers
  // after they saw that (acquire).
  Task task_ = nullptr;
  void* argument_ = nullptr;
  /// Tasks that a worker begins with, from the first on; others help from the last on (work
  /// stealing: Blumofe and Leiserson 1999).
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};  // first << 32 | end
  };
  std::vector<Share> shares_;
  std::atomic<uint32_t> unfinished_{0};  // tasks; of a team's call
  std::atomic<uint32_t> busy_{0};        // workers that have not finished the round
  std::atomic<uint32_t> round_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace tidepool
