// SPDX-License-Identifier: Apache-2.0
// How long this process may use regions of the fabric in place. Memory that is mapped refuses
// nobody: when the lease of the host ends the fabric manager gives it to others, so this process
// has to let go of it before, whatever its agent does. A thread of its own sees to that: it takes
// the regions out of reach of all others (HomeChanges::suspend()), which wait if they touch them.
// Once the agent has said that the regions are still the process's, they go on. Thread-safe.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/os/lease_watch.h"

namespace tidepool {

class DirectLease {
 public:
  /// Both must outlive it. Errors: kNoMemory.
  static Result<std::unique_ptr<DirectLease>> create(Core& core, GranuleMover& mover);
  DirectLease(const DirectLease&) = delete;
  DirectLease& operator=(const DirectLease&) = delete;

  /// Errors: kNoMemory.
  Status start() { return watch_.start(); }
  void stop() { watch_.stop(); }
  void tellToStop() { watch_.tellToStop(); }
  /// In a child of fork(), by its only thread and once its memory is armed: makes what belongs to a
  /// process anew, but for the thread. Errors: as create().
  Status renewInChild();

  /// Adds a tier of the fabric; its number. The migrator's thread alone, as all below.
  uint8_t add(std::unique_ptr<Tier> tier) TP_EXCLUDES(mutex_);
  /// Some are about to go, a bit by number.
  void forget(uint32_t tiers) TP_EXCLUDES(mutex_);
  /// Until this moment of CLOCK_BOOTTIME. Until it has heard of any, there is no end.
  void renew(Nanoseconds until) TP_EXCLUDES(mutex_);
  /// The regions that are left are the process's, for as long as it has heard of.
  void resume() TP_EXCLUDES(mutex_);
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }

 private:
  DirectLease(Core& core, GranuleMover& mover)
      : core_(core),
        mover_(mover),
        watch_([](void* self) { static_cast<DirectLease*>(self)->ended(); }, this) {}
  void ended() TP_EXCLUDES(mutex_);
  void suspend() TP_REQUIRES(mutex_);

  Core& core_;
  GranuleMover& mover_;
  // Ordered before granules' locks.
  Mutex mutex_;
  uint32_t tiers_ TP_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> suspended_{false};  // written with the mutex held
  bool said_ TP_GUARDED_BY(mutex_) = false;
  os::LeaseWatch watch_;
};

}  // namespace tidepool
