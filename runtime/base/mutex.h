// SPDX-License-Identifier: Apache-2.0
// A mutex, its guard and a condition variable, annotated for clang's -Wthread-safety. They are made
// of futexes, not of libc's: glibc locks without atomic operations while it believes that there is
// one thread, and it is not told of Tidepool's own (runtime/base/raw_thread.h). Sanitizers know
// libc's alone, and get those.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#ifdef TIDEPOOL_SANITIZED
#include <condition_variable>
#include <mutex>
#else
#include "runtime/base/futex.h"
#endif

#if defined(__clang__)
#define TP_ATTRIBUTE(x) __attribute__((x))
#else
#define TP_ATTRIBUTE(x)
#endif
#define TP_CAPABILITY(name) TP_ATTRIBUTE(capability(name))
#define TP_SCOPED_CAPABILITY TP_ATTRIBUTE(scoped_lockable)
#define TP_GUARDED_BY(mutex) TP_ATTRIBUTE(guarded_by(mutex))
#define TP_REQUIRES(...) TP_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define TP_EXCLUDES(...) TP_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define TP_ACQUIRE(...) TP_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TP_TRY_ACQUIRE(...) TP_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define TP_RELEASE(...) TP_ATTRIBUTE(release_capability(__VA_ARGS__))
#define TP_RETURNS(mutex) TP_ATTRIBUTE(lock_returned(mutex))
// Why the analysis cannot follow a function. There is no other way to leave one out.
#define TP_UNANALYSED TP_ATTRIBUTE(no_thread_safety_analysis)
// It takes a lock that another function releases, releases one that its caller took, or does so
// only on some ways.
#define TP_LOCKS_BY_HAND TP_UNANALYSED
// The locks are one of an array, or all of a list.
#define TP_LOCKS_MANY TP_UNANALYSED
// A lambda, which is analysed alone: who calls it holds the lock.
#define TP_LOCKS_OF_CALLER TP_UNANALYSED
// In a child of fork() a lock may be in the hands of the parent's threads: it begins anew.
#define TP_LOCKS_INHERITED TP_UNANALYSED
// Nobody else knows the object yet.
#define TP_LOCKS_NOBODY_ELSE TP_UNANALYSED

namespace tidepool {

#ifdef TIDEPOOL_SANITIZED
using PlainMutex = std::mutex;
#else
/// Source: U. Drepper, "Futexes Are Tricky", the second mutex. Not recursive. May be unlocked in a
/// forked child by the thread that forked with it locked.
class PlainMutex {
 public:
  void lock() {
    uint32_t free = kFree;
    if (!word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) lockContended();
  }
  void unlock() {
    // Release pairs with the acquires of the next owner.
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) futexWake(word_, 1);
  }
  bool try_lock() {
    uint32_t free = kFree;
    return word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire);
  }
  /// As lock(), by a thread that others may have slept beside: unlock() will look after them.
  void lockContended() {
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) futexWait(word_, kAwaited);
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kAwaited = 2;
  std::atomic<uint32_t> word_{kFree};
};
#endif

class TP_CAPABILITY("mutex") Mutex {
 public:
  void lock() TP_ACQUIRE() { mutex_.lock(); }
  void unlock() TP_RELEASE() { mutex_.unlock(); }
  /// False, without waiting, if somebody has it.
  bool tryLock() TP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  PlainMutex mutex_;
};

class TP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() TP_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  /// Releases `mutex`, sleeps until notified (or spuriously), takes it again.
  void wait(Mutex& mutex) TP_REQUIRES(mutex) TP_LOCKS_BY_HAND {
#ifdef TIDEPOOL_SANITIZED
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
#else
    const uint32_t seen = notified_.load(std::memory_order_relaxed);
    mutex.mutex_.unlock();
    futexWait(notified_, seen);
    mutex.mutex_.lockContended();
#endif
  }
  void notifyOne() { notify(1); }
  void notifyAll() { notify(INT_MAX); }

 private:
#ifdef TIDEPOOL_SANITIZED
  void notify(int most) { most == 1 ? condition_.notify_one() : condition_.notify_all(); }
  std::condition_variable condition_;
#else
  // Relaxed: the mutex orders what is waited for. A thread that reads the count with the mutex held
  // and its condition not yet true sleeps on a count that changes once it is made true.
  void notify(int most) {
    notified_.fetch_add(1, std::memory_order_relaxed);
    futexWake(notified_, most);
  }
  std::atomic<uint32_t> notified_{0};
#endif
};

}  // namespace tidepool
