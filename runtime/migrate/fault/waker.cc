// SPDX-License-Identifier: Apache-2.0
// The waker's thread and the queue to it: one producer, and consumers that may do the same twice.
#include "runtime/migrate/fault/waker.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/debug_check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool {
namespace {

/// How often another thread took the processor from the calling one.
int64_t timesPreempted() {
  rusage usage{};
  raw::call(SYS_getrusage, RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

Status Waker::start() {
  bell_.reset(raw::eventfd(0, EFD_CLOEXEC));
  if (!bell_.valid()) return failErrno(ErrorCode::kNoMemory, "cannot create an eventfd");
  bell_.keep();
  stopping_.store(false);
  return thread_.start(
      "tidepool-wake", [](void* self) { static_cast<Waker*>(self)->run(); }, this);
}

void Waker::tellToStop() {
  stopping_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = raw::write(bell_.get(), &one, sizeof one);
}

void Waker::stop() {
  if (!thread_.running()) return;
  tellToStop();
  thread_.join();
  thread_id_.store(0);
}

void Waker::run() {
  const sched_param none{};
  if (raw::call(SYS_sched_setscheduler, 0, SCHED_IDLE, &none) != 0) return;
  thread_id_.store(static_cast<pid_t>(raw::call(SYS_gettid)), std::memory_order_release);
  while (!stopping_.load()) {
    while (wakeNext(true)) {
    }
    // Sequential consistency, here and in wake(): either we see what was asked, or the asker sees
    // us asleep.
    asleep_.store(true);
    if (asked_.load() == done_.load() && !stopping_.load()) {
      uint64_t rung;
      [[maybe_unused]] const ssize_t got = raw::read(bell_.get(), &rung, sizeof rung);
    }
    asleep_.store(false);
  }
  while (wakeNext(true)) {
  }
}

bool Waker::wakeNext(bool own_thread) {
  uint64_t next = done_.load(std::memory_order_acquire);
  if (next == asked_.load(std::memory_order_acquire)) return false;
  if (own_thread) {
    begun_.store(next + 1, std::memory_order_release);
    // The scheduler may keep a thread that has just gone to sleep on the processor's queue, in debt
    // for the time it had (EEVDF's delayed dequeue). As long as the service is there the processor
    // does not count as idle; yielding has the debt written off.
    sched_yield();
  }
  const uintptr_t entry = slots_[next % kSlots].load(std::memory_order_relaxed);
  const int64_t preempted = own_thread ? timesPreempted() : 0;
  port_.wake(roundDown(entry, kPageSize), Bytes((entry % kPageSize + 1) * kPageSize));
  // Who is woken here takes the processor at once.
  if (own_thread && timesPreempted() == preempted) strayed_.store(true, std::memory_order_relaxed);
  done_.compare_exchange_strong(next, next + 1, std::memory_order_acq_rel);
  return true;
}

bool Waker::leaves(Nanoseconds now) const {
  return bound_ >= 0 &&
         asked_.load(std::memory_order_relaxed) - done_.load(std::memory_order_acquire) < kSlots &&
         now.value() >= paused_until_.load(std::memory_order_relaxed);
}

void Waker::wake(uintptr_t address, PageCount pages, Nanoseconds now) {
  const uint64_t asked = asked_.load(std::memory_order_relaxed);
  const uint64_t waiting = asked - done_.load(std::memory_order_acquire);
  // An entry has the pages' number in the bits that an address of one does not need.
  TP_CHECK(address % kPageSize == 0 && pages > PageCount() && pages.value() <= kPageSize);
  TP_DCHECK_OP(waiting, <=, kSlots);
  if (!leaves(now)) {
    port_.wake(address, toBytes(pages));
    return;
  }
  slots_[asked % kSlots].store(address + pages.value() - 1, std::memory_order_relaxed);
  if (begun_.load(std::memory_order_acquire) >= asked || waiting == 0)
    asked_at_.store(now.value(), std::memory_order_relaxed);
  asked_.store(asked + 1);
  if (!asleep_.load() || !asleep_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = raw::write(bell_.get(), &one, sizeof one);
}

void Waker::follow(int cpu) {
  const int thread = thread_id_.load(std::memory_order_acquire);
  bound_ = -1;
  if (thread == 0 || cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (raw::call(SYS_sched_setaffinity, thread, sizeof set, &set) == 0) bound_ = cpu;
}

void Waker::wakeOverdue(Nanoseconds now) {
  const uint64_t asked = asked_.load(std::memory_order_acquire);
  if (done_.load(std::memory_order_acquire) == asked) return;
  const bool begun = begun_.load(std::memory_order_acquire) >= asked;
  if (now < Nanoseconds(asked_at_.load(std::memory_order_relaxed)) + kOverdue) return;
  // What was begun is all but sure to be done; once more does no harm.
  while (wakeNext(false)) {
  }
  if (begun) return;
  // Trouble soon after a pause makes the next one longer, a good while without makes it short.
  const bool soon = now < good_since_ + pause_ + pause_;
  pause_ = soon ? std::min(pause_ + pause_, kLongestPause) : kShortestPause;
  good_since_ = now + pause_;
  paused_until_.store(good_since_.value(), std::memory_order_relaxed);
}

}  // namespace tidepool
