// SPDX-License-Identifier: Apache-2.0
// Wakes threads whose page has come, so that they go on where they are. The scheduler puts a woken
// thread on an idle processor if its own is busy, and it is busy: with the fault service, which
// runs there for the same reason (CpuFollower). The woken thread then waits for the other processor
// to come out of idle, as does the service at the next fault: 10 us each in a virtual machine, as
// much as all the rest of a fetch. A processor that runs nothing but SCHED_IDLE threads counts as
// idle, so the service leaves the waking to a thread of that class beside it, and goes to sleep.
//
// Such a thread may not get to run at all when the processor is wanted by others. It holds no lock
// and has nothing that others could not do: the migrator looks for wakes that are overdue, does
// them, and has the service wake for itself for a while.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>

#include "runtime/base/clock.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"
#include "runtime/os/fault_port.h"

namespace tidepool {

class Waker {
 public:
  /// `port` must outlive the waker.
  explicit Waker(FaultPort& port) : port_(port) {}
  ~Waker() { stop(); }

  /// Errors: kNoMemory. Where the kernel refuses SCHED_IDLE the caller does the waking.
  Status start();
  void stop();
  /// In a child of fork(): the thread is the parent's.
  void forgetThread() { thread_.forget(); }
  void awaitBegin() const { thread_.awaitBegin(); }
  clockid_t clock() const { return thread_.clock(); }

  /// By the fault service's thread only: wakes the threads that wait for the pages (at most 4096),
  /// by the waker's thread if that runs on the same processor as the caller, else at once.
  void wake(uintptr_t address, PageCount pages, Nanoseconds now);
  /// By the fault service's thread: whether wake() leaves it to the waker's thread just now.
  bool leaves(Nanoseconds now) const;
  /// By the fault service's thread: where it is bound, or -1 if it may run anywhere.
  void follow(int cpu);
  int bound() const { return bound_; }
  /// By the fault service's thread: whether what was woken since the last call seems to have gone
  /// to another processor. Also true if nobody waited.
  bool strayed() {
    return strayed_.load(std::memory_order_relaxed) &&
           strayed_.exchange(false, std::memory_order_relaxed);
  }

  /// By the migrator's thread: asks the thread to end, without waiting for it.
  void tellToStop();
  /// By the migrator's thread: does what has waited too long.
  void wakeOverdue(Nanoseconds now);

 private:
  static constexpr size_t kSlots = 64;  // a power of two
  // Longer than the thread needs on a processor that is left to it, and longer than hypervisors
  // commonly take a processor away.
  static constexpr Nanoseconds kOverdue{4'000'000};
  static constexpr Nanoseconds kShortestPause{20'000'000};
  static constexpr Nanoseconds kLongestPause{64'000'000'000};

  void run();
  /// Does the first entry that waits; false if none does.
  bool wakeNext(bool own_thread);

  FaultPort& port_;
  // Entries [done_, asked_) wait: address, and in its low bits how many pages more. Waking twice
  // does no harm, so a thread wakes first and then moves `done_` on: one that is preempted in
  // between does not keep others from it.
  std::array<std::atomic<uintptr_t>, kSlots> slots_{};
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> done_{0};
  // The thread has begun with the entries before it. It is often preempted by the very thread that
  // it wakes, and says that it is done only when that one sleeps again.
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> asked_at_{0};      // nanoseconds, of the first that nobody has begun with
  std::atomic<uint64_t> paused_until_{0};  // nanoseconds
  // The migrator's: how long to pause next time, and since when there was no need to.
  Nanoseconds pause_ = kShortestPause;
  Nanoseconds good_since_;
  std::atomic<bool> strayed_{false};  // something that its thread woke did not run here
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> thread_id_{0};  // 0: not to be used
  int bound_ = -1;                 // the service's
  UniqueFd bell_;
  ServiceThread thread_;
};

}  // namespace tidepool
