// SPDX-License-Identifier: Apache-2.0
// Workers: a round begins when its number goes up, and ends when the last worker has left it.
// Waiting is by C++20's atomic wait, which spins for a moment before it sleeps.
#include "allocator/table/workers.h"

#include <unistd.h>

#include <algorithm>

namespace tidepool {

Workers::Workers(size_t threads) : pid_(getpid()) {
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
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::takeTasks(size_t worker) {
  // Relaxed: the number alone is shared out; task_ and what it works on are ordered by round_.
  for (size_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
       task = next_.fetch_add(1, std::memory_order_relaxed)) {
    task_(argument_, task, worker);
  }
}

void Workers::serve(size_t worker) {
  uint32_t seen = 0;
  for (;;) {
    round_.wait(seen, std::memory_order_acquire);  // pairs with the release in runTasks()
    seen = round_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    takeTasks(worker);
    // Release: what the tasks wrote is the caller's; pairs with its acquire.
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
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
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(threads_.size(), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  takeTasks(0);
  for (size_t busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire)) {
    busy_.wait(busy, std::memory_order_acquire);
  }
}

}  // namespace tidepool
