// SPDX-License-Identifier: Apache-2.0
// Brings the service threads to a standstill for fork(): each finishes what it has under way, then
// sleeps until resumed. The migrator comes first: while the fault service still runs, holders
// of what fork() waits for get the pages that they touch. Thread-safe; one requester at a time.
#pragma once

#include <atomic>
#include <new>

#include "runtime/base/debug_check.h"
#include "runtime/base/mutex.h"

namespace tidepool {

class Parking {
 public:
  /// How many stand still, in this order.
  enum class Upto : int { kNobody, kMigrator, kFaults };

  /// For the service threads: true while they should finish and then call park().
  bool requested(Upto self) const {
    const Upto upto = upto_.load(std::memory_order_acquire);
    if (upto == Upto::kMigrator && excused_.load(std::memory_order_acquire)) return false;
    return static_cast<int>(upto) >= static_cast<int>(self);
  }
  /// While memory is out of reach, and the program's threads may wait for that, the migrator does
  /// not stand still alone: it is who hears that the memory is back. The requester waits.
  void excuseMigrator(bool excused) {
    MutexLock lock(mutex_);
    excused_.store(excused, std::memory_order_release);
    changed_.notifyAll();
  }

  /// Called by a service thread that has nothing under way; returns once it need not stand still.
  void park(Upto self) {
    MutexLock lock(mutex_);
    ++parked_;
    TP_DCHECK_OP(parked_, <=, static_cast<int>(Upto::kFaults));
    changed_.notifyAll();
    while (requested(self)) changed_.wait(mutex_);
    --parked_;
    changed_.notifyAll();
  }

  /// Those behind `last` go on. The caller then rings the threads' doorbells and calls await().
  void request(Upto last) {
    MutexLock lock(mutex_);
    // Release pairs with requested(): a thread that parks has seen all that came before.
    upto_.store(last, std::memory_order_release);
    changed_.notifyAll();
  }
  /// Returns when as many stand still as were asked to, and no others.
  void await() {
    MutexLock lock(mutex_);
    while (parked_ != static_cast<int>(upto_.load(std::memory_order_relaxed))) {
      changed_.wait(mutex_);
    }
  }
  /// In a child of fork(): those who wait here are the parent's threads. Nothing of theirs can be
  /// waited for, so the lock and the condition variable begin anew, without being destroyed.
  void forgetThreads() TP_LOCKS_INHERITED {
    new (&mutex_) Mutex;
    new (&changed_) CondVar;
    parked_ = 0;
    upto_.store(Upto::kNobody, std::memory_order_relaxed);
  }
  void resume() { request(Upto::kNobody); }

 private:
  std::atomic<Upto> upto_{Upto::kNobody};
  std::atomic<bool> excused_{false};
  Mutex mutex_;
  CondVar changed_;
  int parked_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
