// SPDX-License-Identifier: Apache-2.0
// Calls somebody when a lease ends, on a thread of its own, which waits for nothing else: the
// process that would renew the lease may be stopped or gone. Time goes on while the machine is
// suspended. Thread-safe but for start(), stop() and renewInChild().
#pragma once

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/service_thread.h"
#include "runtime/base/unique_fd.h"

namespace tidepool::os {

class LeaseWatch {
 public:
  using Call = void (*)(void* argument);
  /// `ended(argument)` is called when a lease has ended, once for each that renew() has told of.
  LeaseWatch(Call ended, void* argument) : ended_(ended), argument_(argument) {}
  ~LeaseWatch() { stop(); }
  LeaseWatch(const LeaseWatch&) = delete;
  LeaseWatch& operator=(const LeaseWatch&) = delete;

  /// Before all others. Errors: kNoMemory.
  Status open();
  /// Errors: kNoMemory.
  Status start();
  void stop();
  /// Without waiting for that.
  void tellToStop();
  /// In a child of fork(), by its only thread: what it has is the parent's. Errors: kNoMemory.
  Status renewInChild();

  /// It ends at this moment of CLOCK_BOOTTIME; before, by what it takes to let go of so much memory
  /// that is mapped, but a fifth of the time that is left at most.
  void renew(Nanoseconds until, Bytes mapped) TP_EXCLUDES(mutex_);
  /// True also before it has heard of any.
  bool over() TP_EXCLUDES(mutex_);

 private:
  void run();
  void setTimer() TP_REQUIRES(mutex_);

  const Call ended_;
  void* const argument_;
  const BootClock clock_;
  UniqueFd timer_;  // of that clock: it wakes the thread as soon as a suspended machine goes on
  UniqueFd bell_;   // an eventfd: the thread is to end
  ServiceThread thread_;
  Mutex mutex_;
  Nanoseconds until_ TP_GUARDED_BY(mutex_);  // 0: it has not heard of any
};

}  // namespace tidepool::os
