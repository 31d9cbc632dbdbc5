// SPDX-License-Identifier: Apache-2.0
// A mutex, its guard and a condition variable, annotated for clang's -Wthread-safety.
#pragma once

#include <condition_variable>
#include <mutex>

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
#define TP_NO_THREAD_SAFETY TP_ATTRIBUTE(no_thread_safety_analysis)

namespace tidepool {

class TP_CAPABILITY("mutex") Mutex {
 public:
  void lock() TP_ACQUIRE() { mutex_.lock(); }
  void unlock() TP_RELEASE() { mutex_.unlock(); }
  /// False, without waiting, if somebody has it.
  bool tryLock() TP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
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
  void wait(Mutex& mutex) TP_REQUIRES(mutex) TP_NO_THREAD_SAFETY {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void notifyOne() { condition_.notify_one(); }
  void notifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace tidepool
