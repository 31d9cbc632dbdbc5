// SPDX-License-Identifier: Apache-2.0
// The agent's one thread that decides: libevent's loop, with calls instead of C callbacks. All but
// post() and stop() belongs to that thread.
#pragma once

#include <event2/event.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/units.h"

namespace tidepool::agent {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Carries `work` out in the loop's thread, in the order of the calls. Thread-safe.
  void post(std::function<void()> work);
  /// Returns after stop(). What was posted and not carried out is dropped.
  void run();
  void stop();
  event_base* base() const { return base_.get(); }

 private:
  struct Deleter {
    void operator()(event_base* base) const { event_base_free(base); }
    void operator()(event* one) const { event_free(one); }
  };
  friend class Trigger;
  static void onMail(int fd, short events, void* self);
  void carryOut();

  std::unique_ptr<event_base, Deleter> base_;
  UniqueFd wake_;  // an eventfd
  std::unique_ptr<event, Deleter> mail_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ TP_GUARDED_BY(mutex_);
};

/// Calls back when a descriptor is ready, or when a time is over. Its owner must outlive it; it may
/// be destroyed in its own call.
class Trigger {
 public:
  using Call = std::function<void(short events)>;
  /// A timer; not set yet.
  Trigger(EventLoop& loop, Call call) : Trigger(loop, -1, 0, std::move(call)) {}
  /// A descriptor, which is not owned: EV_READ, EV_WRITE, again and again.
  Trigger(EventLoop& loop, int fd, short events, Call call);
  Trigger(const Trigger&) = delete;
  Trigger& operator=(const Trigger&) = delete;

  void after(Nanoseconds time);  // timers: once; what was set before does not count
  void cancel() { event_del(event_.get()); }

 private:
  static void onEvent(int fd, short events, void* self);

  std::shared_ptr<Call> call_;  // kept alive while it runs
  std::unique_ptr<event, EventLoop::Deleter> event_;
};

}  // namespace tidepool::agent
