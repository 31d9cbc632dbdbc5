// SPDX-License-Identifier: Apache-2.0
// Threads that carry out requests of one kind, so that slow ones (which wait for disks and devices)
// never keep quick ones (heartbeats) waiting. Bounded: what does not fit is refused. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"

namespace tidepool::api {

class WorkLane {
 public:
  WorkLane(unsigned threads, size_t longest_queue);
  /// Drops what waits, finishes what runs.
  ~WorkLane();
  WorkLane(const WorkLane&) = delete;
  WorkLane& operator=(const WorkLane&) = delete;

  /// False if too much waits already.
  bool push(std::function<void()> work);

 private:
  void run();

  const size_t longest_queue_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ TP_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> waiting_ TP_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace tidepool::api
