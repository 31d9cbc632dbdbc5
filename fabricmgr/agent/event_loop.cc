// SPDX-License-Identifier: Apache-2.0
// EventLoop and Trigger over libevent.
#include "fabricmgr/agent/event_loop.h"

#include <sys/eventfd.h>

#include <utility>

#include "runtime/base/check.h"

namespace tidepool::agent {

EventLoop::EventLoop() : base_(event_base_new()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TP_CHECK(base_ != nullptr);
  TP_CHECK_OP(wake_.get(), >=, 0);
  mail_.reset(event_new(base_.get(), wake_.get(), EV_READ | EV_PERSIST, onMail, this));
  TP_CHECK(mail_ != nullptr);
  event_add(mail_.get(), nullptr);
}

EventLoop::~EventLoop() = default;

void EventLoop::post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // full means: it is readable already
}

void EventLoop::run() { event_base_dispatch(base_.get()); }

void EventLoop::stop() {
  post([this] { event_base_loopbreak(base_.get()); });
}

void EventLoop::onMail(int, short, void* self) { static_cast<EventLoop*>(self)->carryOut(); }

void EventLoop::carryOut() {
  uint64_t count;
  (void)!read(wake_.get(), &count, sizeof count);
  std::vector<std::function<void()>> work;
  {
    const MutexLock lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& one : work) {
    if (event_base_got_break(base_.get()) != 0) return;
    one();
  }
}

Trigger::Trigger(EventLoop& loop, int fd, short events, Call call)
    : call_(std::make_shared<Call>(std::move(call))) {
  const bool timer = fd < 0;
  event_.reset(event_new(loop.base(), fd, static_cast<short>(timer ? 0 : events | EV_PERSIST),
                         onEvent, this));
  TP_CHECK(event_ != nullptr);
  if (!timer) event_add(event_.get(), nullptr);
}

void Trigger::after(Nanoseconds time) {
  const timeval delay = {static_cast<time_t>(time.value() / 1'000'000'000),
                         static_cast<suseconds_t>(time.value() % 1'000'000'000 / 1000)};
  event_add(event_.get(), &delay);
}

void Trigger::onEvent(int, short events, void* self) {
  const std::shared_ptr<Call> call = static_cast<Trigger*>(self)->call_;
  (*call)(events);
}

}  // namespace tidepool::agent
