// SPDX-License-Identifier: Apache-2.0
// LeaseWatch: a timer's descriptor.
#include "runtime/os/lease_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "runtime/base/check.h"
#include "runtime/base/raw_calls.h"

namespace tidepool::os {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
// To take 2 MiB in pages of 4 KiB out of the page table: measured 144 us on a slow machine.
constexpr Nanoseconds kLettingGo(150'000);
// A missed heartbeat must not end a lease: they come at each third of it.
constexpr uint64_t kMostPart = 5;

}  // namespace

Status LeaseWatch::open() {
  timer_.reset(
      static_cast<int>(raw::call(SYS_timerfd_create, CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)));
  bell_.reset(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!timer_.valid() || !bell_.valid()) {
    return failErrno(ErrorCode::kNoMemory, "no descriptor for the timer of a lease");
  }
  timer_.keep();
  bell_.keep();
  return {};
}

Status LeaseWatch::start() {
  TP_TRY(thread_.start(
      "tidepool-lease", [](void* self) { static_cast<LeaseWatch*>(self)->run(); }, this));
  thread_.awaitBegin();
  return {};
}

void LeaseWatch::tellToStop() {
  const uint64_t one = 1;
  TP_CHECK(raw::write(bell_.get(), &one, sizeof one) == sizeof one);
}

void LeaseWatch::stop() {
  if (!thread_.running()) return;
  tellToStop();
  thread_.join();
  uint64_t rung = 0;
  TP_CHECK(raw::read(bell_.get(), &rung, sizeof rung) == sizeof rung);
}

Status LeaseWatch::renewInChild() {
  thread_.forget();
  new (&mutex_) Mutex;
  TP_TRY(open());
  MutexLock lock(mutex_);
  setTimer();
  return {};
}

void LeaseWatch::run() {
  for (;;) {
    pollfd waits[] = {{timer_.get(), POLLIN, 0}, {bell_.get(), POLLIN, 0}};
    (void)raw::poll(waits, std::size(waits), -1);
    if (waits[1].revents != 0) return;
    uint64_t times = 0;
    if (raw::read(timer_.get(), &times, sizeof times) == sizeof times) ended_(argument_);
  }
}

void LeaseWatch::setTimer() {
  itimerspec when{};  // 0: never
  when.it_value = {static_cast<time_t>(until_.value() / kSecond),
                   static_cast<long>(until_.value() % kSecond)};
  TP_CHECK(raw::call(SYS_timerfd_settime, timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0);
}

void LeaseWatch::renew(Nanoseconds until, Bytes mapped) {
  const Nanoseconds now = clock_.now();
  const Nanoseconds left = until > now ? until - now : Nanoseconds();
  const Nanoseconds early =
      std::min(left / kMostPart, kLettingGo * (mapped.value() / kGranuleSize));
  MutexLock lock(mutex_);
  until_ = std::max(until - early, Nanoseconds(1));
  setTimer();
}

bool LeaseWatch::over() {
  MutexLock lock(mutex_);
  return clock_.now() >= until_;
}

}  // namespace tidepool::os
