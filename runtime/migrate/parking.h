// SPDX-License-Identifier: Apache-2.0
// Brings the service threads to a standstill for fork(): each finishes what it has under way, then
// sleeps until resumed. Thread-safe; one requester at a time.
#pragma once

#include <atomic>
#include <new>

#include "runtime/base/mutex.h"

namespace tidepool {

class Parking {
 public:
  /// For the service threads: true while they should finish and then call park().
  bool requested() const { return requested_.load(std::memory_order_acquire); }

  /// Called by a service thread that has nothing under way; returns after resume().
  void park() {
    MutexLock lock(mutex_);
    ++parked_;
    changed_.notifyAll();
    while (requested()) changed_.wait(mutex_);
    --parked_;
  }

  /// The caller then rings the threads' doorbells and calls waitFor().
  void request() {
    // Release pairs with requested(): a thread that parks has seen all that came before.
    requested_.store(true, std::memory_order_release);
  }
  void waitFor(int threads) {
    MutexLock lock(mutex_);
    while (parked_ < threads) changed_.wait(mutex_);
  }
  /// In a child of fork(): those who wait here are the parent's threads. Nothing of theirs can be
  /// waited for, so the lock and the condition variable begin anew, without being destroyed.
  void forgetThreads() TP_NO_THREAD_SAFETY {
    new (&mutex_) Mutex;
    new (&changed_) CondVar;
    parked_ = 0;
    requested_.store(false, std::memory_order_relaxed);
  }
  void resume() {
    MutexLock lock(mutex_);
    requested_.store(false, std::memory_order_release);
    changed_.notifyAll();
  }

 private:
  std::atomic<bool> requested_{false};
  Mutex mutex_;
  CondVar changed_;
  int parked_ TP_GUARDED_BY(mutex_) = 0;
};

}  // namespace tidepool
