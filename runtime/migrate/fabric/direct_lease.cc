// SPDX-License-Identifier: Apache-2.0
// DirectLease: what the end of a lease, and its renewal, lead to.
#include "runtime/migrate/fabric/direct_lease.h"

#include <new>
#include <utility>

#include "runtime/base/log.h"

namespace tidepool {

Result<std::unique_ptr<DirectLease>> DirectLease::create(Core& core, GranuleMover& mover) {
  std::unique_ptr<DirectLease> lease(new DirectLease(core, mover));
  TP_TRY(lease->watch_.open());
  return lease;
}

Status DirectLease::renewInChild() {
  new (&mutex_) Mutex;  // its holder is a thread of the parent's
  MutexLock lock(mutex_);
  TP_TRY(watch_.renewInChild());
  if (suspended()) suspend();
  return {};
}

void DirectLease::ended() {
  MutexLock lock(mutex_);
  if (suspended() || !watch_.over()) return;
  suspend();
  count(core_.stats->direct_suspensions, 1);
  said_ = true;
  reportError(core_,
              "the lease of this host is over (its agent or the fabric manager is away): memory "
              "that is used in place may be somebody else's, and threads that touch it wait");
}

void DirectLease::suspend() TP_LOCKS_BY_HAND {
  core_.space->lockAllGranules();
  mover_.changes.suspend(tiers_);
  core_.space->unlockAllGranules();
  suspended_.store(true, std::memory_order_release);
  core_.stats->direct_suspended.store(1, std::memory_order_relaxed);
  core_.parking.excuseMigrator(true);
}

uint8_t DirectLease::add(std::unique_ptr<Tier> tier) {
  MutexLock lock(mutex_);
  const bool direct = tier->direct() != nullptr;
  // It has come late, or before any lease: what the agent says next decides.
  if (direct && !suspended() && watch_.over()) suspend();
  if (direct && suspended()) tier->suspend();
  const uint8_t number = core_.tiers.add(std::move(tier));
  if (direct) tiers_ |= uint32_t{1} << number;
  mover_.whole.tierCame();
  return number;
}

void DirectLease::renew(Nanoseconds until) {
  MutexLock lock(mutex_);
  Bytes mapped;
  core_.tiers.forEach([&](uint8_t number, const Tier& tier) TP_LOCKS_OF_CALLER {
    if ((tiers_ >> number & 1) != 0) mapped += tier.used();
  });
  watch_.renew(until, mapped);
}

void DirectLease::forget(uint32_t tiers) {
  MutexLock lock(mutex_);
  tiers_ &= ~tiers;
}

void DirectLease::resume() {
  MutexLock lock(mutex_);
  if (!suspended() || watch_.over()) return;
  mover_.changes.resume(tiers_);
  suspended_.store(false, std::memory_order_release);
  core_.stats->direct_suspended.store(0, std::memory_order_relaxed);
  core_.parking.excuseMigrator(false);
  if (!std::exchange(said_, false)) return;
  logLine("the lease of this host is renewed: memory that is used in place is within reach again");
}

}  // namespace tidepool
