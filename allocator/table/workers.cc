// SPDX-License-Identifier: Apache-2.0
// Workers: a round begins when its number goes up, and ends when the last worker has left it.
#include "allocator/table/workers.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "runtime/base/atomic_wait.h"
#include "runtime/base/check.h"
#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

/// waitWhile(), but looks for as long as waking up would take: calls have several rounds, and come
/// one after the other; and who waits for the end of a round does so for the rest of one task.
void waitAwake(const std::atomic<uint32_t>& word, uint32_t old) {
  constexpr std::chrono::microseconds kAwake(50);
  const auto end = std::chrono::steady_clock::now() + kAwake;
  while (!hasChanged(word, old)) {
    if (std::chrono::steady_clock::now() >= end) return waitWhile(word, old);
  }
}

std::atomic<const ThreadTeam*> borrowed{nullptr};
// Who has borrowed it: its children have no threads but the one that forked.
std::atomic<pid_t> borrower{0};

}  // namespace

void Workers::borrow(const ThreadTeam* team) {
  borrower.store(getpid(), std::memory_order_relaxed);
  // Release: pairs with the acquire in runInTeam(), for what it points to.
  borrowed.store(team, std::memory_order_release);
}

Workers::Workers(size_t threads, uint64_t least_shared)
    : pid_(getpid()), least_shared_(least_shared), shares_(std::max<size_t>(threads, 1)) {
  for (size_t worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { serve(worker); });
  }
}

Workers::~Workers() {
  if (getpid() != pid_) {  // they are the parent's
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  wakeWaiters(round_);
  for (std::thread& thread : threads_) thread.join();
}

void Workers::shareOut(size_t tasks) {
  TP_CHECK_OP(tasks, <, size_t{1} << 32);
  const size_t several = shares_.size();
  for (size_t i = 0; i < several; ++i) {
    const uint64_t first = tasks * i / several, end = tasks * (i + 1) / several;
    shares_[i].left.store(first << 32 | end, std::memory_order_relaxed);
  }
  unfinished_.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
}

// Relaxed: the numbers alone are shared out; task_ and what it works on are ordered by round_.
uint32_t Workers::takeTasks(size_t worker) {
  uint32_t taken = 0;
  constexpr uint64_t kEnd = 0xffffffff;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const size_t whose = (worker + i) % shares_.size();
    std::atomic<uint64_t>& left = shares_[whose].left;
    uint64_t now = left.load(std::memory_order_relaxed);
    while (now >> 32 < (now & kEnd)) {
      const bool mine = whose == worker;
      const uint64_t rest = mine ? now + (uint64_t{1} << 32) : now - 1;
      if (!left.compare_exchange_weak(now, rest, std::memory_order_relaxed)) continue;
      task_(argument_, mine ? now >> 32 : rest & kEnd, worker);
      ++taken;
      now = left.load(std::memory_order_relaxed);
    }
  }
  return taken;
}

/// Returns when all tasks of the call are done. A team's threads would wait for one another without
/// sleeping, for milliseconds, and who serves far rows on this machine would wait for processors.
void Workers::awaitOthers(uint32_t taken) {
  uint32_t left = unfinished_.fetch_sub(taken, std::memory_order_relaxed);
  TP_CHECK_OP(left, >=, taken);
  left -= taken;
  if (left == 0) return wakeWaiters(unfinished_);
  while ((left = unfinished_.load(std::memory_order_relaxed)) != 0) waitAwake(unfinished_, left);
}

/// False if there is no team, or it has too few threads. It orders what they do before and after.
bool Workers::runInTeam() {
  const ThreadTeam* const team = borrowed.load(std::memory_order_acquire);
  if (team == nullptr || borrower.load(std::memory_order_relaxed) != pid_) return false;
  const size_t threads = team->threads();
  if (threads < this->threads()) return false;
  struct Call {
    Workers* workers;
    const ThreadTeam* team;
  } call{this, team};
  const auto act = [](void* argument) {
    const Call& mine = *static_cast<const Call*>(argument);
    const size_t worker = mine.team->number();
    Workers& workers = *mine.workers;
    workers.awaitOthers(worker < workers.threads() ? workers.takeTasks(worker) : 0);
  };
  team->run(act, &call, threads);
  return true;
}

void Workers::serve(size_t worker) {
  uint32_t seen = 0;
  for (;;) {
    waitAwake(round_, seen);  // pairs with the release in runTasks()
    seen = round_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    takeTasks(worker);
    // Release: what the tasks wrote is the caller's; pairs with its acquire.
    const uint32_t busy = busy_.fetch_sub(1, std::memory_order_release);
    TP_CHECK_OP(busy, >, 0u);
    if (busy == 1) wakeWaiters(busy_);
  }
}

void Workers::runTasks(size_t tasks, Task task, void* argument) {
  if (tasks <= 1 || threads_.empty() || getpid() != pid_) {
    for (size_t i = 0; i < tasks; ++i) task(argument, i, 0);
    return;
  }
  MutexLock lock(turn_);
  task_ = task;
  argument_ = argument;
  shareOut(tasks);
  if (runInTeam()) return;
  busy_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  wakeWaiters(round_);
  takeTasks(0);
  for (uint32_t busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire)) {
    waitAwake(busy_, busy);
  }
}

}  // namespace tidepool
