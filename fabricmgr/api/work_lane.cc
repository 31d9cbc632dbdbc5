// SPDX-License-Identifier: Apache-2.0
// WorkLane: a queue and its threads.
#include "fabricmgr/api/work_lane.h"

#include <utility>

namespace tidepool::api {

WorkLane::WorkLane(unsigned threads, size_t longest_queue) : longest_queue_(longest_queue) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkLane::~WorkLane() {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock: it may post answers
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  changed_.notifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkLane::push(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    if (stopping_ || waiting_.size() >= longest_queue_) return false;
    waiting_.push_back(std::move(work));
  }
  changed_.notifyOne();
  return true;
}

void WorkLane::run() {
  for (;;) {
    std::function<void()> work;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace tidepool::api
