// SPDX-License-Identifier: Apache-2.0
// A thread that populates memory of regions before their clients write to it: the kernel clears a
// huge page in some hundred microseconds, and a thread that writes to it first would wait for that.
// Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "fabricmgr/memserver/region_table.h"
#include "runtime/base/mutex.h"

namespace tidepool::memserver {

class Populator {
 public:
  Populator() : thread_([this] { run(); }) {}
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  /// Has what Region::wantBehind() asked for populated, unless the region goes before.
  void populate(const std::shared_ptr<Region>& region) TP_EXCLUDES(mutex_);

 private:
  void run() TP_EXCLUDES(mutex_);
  /// False once it is to end.
  bool awaitRegion(std::weak_ptr<Region>& region) TP_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::weak_ptr<Region>> regions_ TP_GUARDED_BY(mutex_);
  bool stopping_ TP_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace tidepool::memserver
