// SPDX-License-Identifier: Apache-2.0
// Populator: one queue, one piece of a region at a time, so that a region which goes is held only
// for as long as a piece takes.
#include "fabricmgr/memserver/populator.h"

#include <utility>

namespace tidepool::memserver {

Populator::~Populator() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notifyAll();
  }
  thread_.join();
}

void Populator::populate(const std::shared_ptr<Region>& region) {
  MutexLock lock(mutex_);
  regions_.push_back(region);
  changed_.notifyAll();
}

bool Populator::awaitRegion(std::weak_ptr<Region>& region) {
  MutexLock lock(mutex_);
  while (regions_.empty() && !stopping_) changed_.wait(mutex_);
  if (stopping_) return false;
  region = std::move(regions_.front());
  regions_.pop_front();
  return true;
}

void Populator::run() {
  std::weak_ptr<Region> waiting;
  while (awaitRegion(waiting)) {
    const std::shared_ptr<Region> region = waiting.lock();
    if (region != nullptr && region->populateSome()) populate(region);
  }
}

}  // namespace tidepool::memserver
