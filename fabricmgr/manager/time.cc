// SPDX-License-Identifier: Apache-2.0
// What happens because time has passed: tick() and its parts. One thread at a time.
#include <fmt/format.h>

#include <algorithm>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

/// How soon it is found out that a device has gone, or has come back without what it held.
constexpr Nanoseconds kLookEvery(2'000'000'000);
/// A pause of the manager's own that is worth a line.
constexpr Nanoseconds kAbsence(1'000'000'000);
constexpr Nanoseconds kDay(86'400'000'000'000);
/// How many indexes' events are kept at least: hours of them, at hundreds a second.
constexpr uint64_t kEventsKept = 2'000'000;
/// Old records are dropped in one step for about this many changes.
constexpr uint64_t kCleanEvery = 10'000;
/// Audit records that go in one step: more would keep others waiting for the disk.
constexpr uint64_t kAuditAtOnce = 10'000;

}  // namespace

void Manager::pulse() {
  MutexLock lock(impl_->mutex);
  (void)impl_->awake.now();
}

void Manager::tick() {
  impl_->noteAbsence();
  impl_->noteSuspension();
  impl_->reloadIfBroken();
  impl_->lookAtDevices();
  // Who has been superseded shows what it knows, and does nothing: for good, or it would go on with
  // what is out of date as soon as the other one ends.
  if (impl_->checkInCharge()) {
    impl_->expireLeases();
    impl_->expireDeadlines();
    impl_->retryDevices();
    impl_->dropOldAudit();
    impl_->dropOldRecords();
  }
  impl_->tellOfDevices();
  impl_->saySuperseded();
  impl_->writeLines();
}

void Manager::Impl::noteAbsence() {
  MutexLock lock(mutex);
  (void)awake.now();
  const Nanoseconds missed = awake.missed() - absence_said;
  if (missed < kAbsence) return;
  absence_said = awake.missed();
  say(Weight::kWarning,
      fmt::format("the manager did not run for {:.1f} s: leases are so much longer",
                  static_cast<double>(missed.value()) / 1e9));
}

void Manager::Impl::noteSuspension() {
  const Status may = store->mayAct();
  if (may.has_value() != suspended) return;
  suspended = !may;
  MutexLock lock(mutex);
  if (may) {
    for (const auto& [id, host] : state.hosts()) renew(host.host);
  }
  say(may ? Weight::kInfo : Weight::kError,
      may ? "the store lets this manager act again: every lease begins anew"
          : fmt::format("nothing is changed, and no lease ends: {}", may.error().text()));
}

void Manager::Impl::reloadIfBroken() {
  if (suspended) return;
  {
    MutexLock lock(mutex);
    if (!broken) return;
    loading = true;
    while (active > 0) changed.wait(mutex);
  }
  const Status loaded = recover();
  MutexLock lock(mutex);
  loading = false;
  broken = broken || !loaded;
  if (!loaded) trouble = loaded.error().text();
  changed.notifyAll();
}

void Manager::Impl::expireDeadlines() {
  Index index;
  {
    MutexLock lock(mutex);
    if (broken) return;
    const std::map<OperationId, Nanoseconds> all = deadlines;  // what is done ends some of them
    for (const auto& [id, at] : all) {
      const Operation* operation = state.findOperation(id);
      if (operation == nullptr) continue;
      if (const Nanoseconds left = deadlineLeft(id); left > Nanoseconds(1)) {
        if (left < (operation->deadline - operation->started) / 10 * 9) {
          index = keepDeadline(*operation, left);
        }
        continue;
      }
      std::set<RegionId> due = {operation->region};
      const HostEntry* host = state.findHost(operation->host);
      if (operation->region == RegionId() && host != nullptr) due = host->regions;
      for (const RegionId region : due) {
        RegionEntry* entry = state.findRegion(region);
        if (entry == nullptr || entry->busy || entry->region.state != RegionState::kDraining) {
          continue;
        }
        say(Weight::kWarning,
            fmt::format("region {} of host {}: the deadline of its drain is over, "
                        "it is taken by force",
                        region.value(), hostName(entry->region.host)));
        Step step(*this, "manager", "region.deadline", Subject::kRegion);
        step.about(region.value());
        fence(&step, entry);
        index = step.commit(*this);
      }
    }
  }
  (void)settle(index);
}

Index Manager::Impl::keepDeadline(Operation operation, Nanoseconds left) {
  Step step(*this, "manager", "operation.deadline", Subject::kOperation);
  step.about(operation.id.value());
  operation.deadline = operation.started + left;
  operation.modified = step.index();
  step.put(operation);
  return step.commit(*this);
}

void Manager::Impl::lookAtDevices() {
  const Nanoseconds now = options.clock->now();
  if (now < looked_at + kLookEvery) return;
  looked_at = now;
  drivers.look();
}

void Manager::Impl::retryDevices() {
  for (const DeviceId id : drivers.away()) {
    Device device;
    {
      MutexLock lock(mutex);
      const DeviceEntry* entry = state.findDevice(id);
      if (broken || entry == nullptr) continue;
      device = entry->device;
    }
    (void)bringIn(device);  // a contradiction leaves it out of use, as if it did not answer
  }
  MutexLock lock(mutex);
  if (broken) return;
  const std::set<RegionId> again = stuck;
  for (const RegionId region : again) enqueue(region);
}

void Manager::Impl::tellOfDevices() {
  for (const DriverTable::Turn& turn : drivers.takeTurns()) {
    Index index;
    {
      MutexLock lock(mutex);
      const DeviceEntry* entry = state.findDevice(turn.device);
      if (broken || entry == nullptr) continue;
      const std::string& name = entry->device.name;
      const bool gone = turn.now.health != DeviceHealth::kReachable;
      say(gone ? Weight::kError : Weight::kInfo,
          gone ? fmt::format("device {} does not answer: {}", name, turn.now.trouble)
               : fmt::format("device {} answers again", name));
      if (!checkInCharge()) continue;
      Step step(*this, "manager", "device.look", Subject::kDevice);
      step.about(turn.device.value());
      if (gone) step.outcome(turn.now.trouble);
      step.event(Subject::kDevice, turn.device.value(), HostId(),
                 std::string(nameOf(turn.now.health)));
      index = step.commit(*this);
    }
    (void)settle(index);
  }
}

void Manager::Impl::dropOldRecords() {
  Index index;
  {
    MutexLock lock(mutex);
    const Nanoseconds now = options.wall_clock->now();
    const bool due =
        last_index.value() >= cleaned_at.value() + kCleanEvery || now >= cleaned_time + kDay / 24;
    if (broken || !due || last_index == cleaned_at) return;
    Step step(*this, "manager", "clean", Subject::kOperation);
    if (now > kDay) step.put(DropKeysBefore{now - kDay});
    if (last_index.value() > kEventsKept) {
      step.put(DropEventsBefore{Index(last_index.value() - kEventsKept)});
    }
    if (step.empty()) return;
    index = step.commit(*this);
    cleaned_at = index;
    cleaned_time = now;
  }
  (void)settle(index);
}

void Manager::Impl::dropOldAudit() {
  const Nanoseconds time = options.clock->now();
  if ((options.audit_age == Nanoseconds() && options.audit_records == 0) || time < audit_due_from) {
    return;
  }
  audit_due_from = time + kDay / 24;
  const Nanoseconds now = options.wall_clock->now();
  if (now <= options.audit_age) return;
  const bool by_age = options.audit_age != Nanoseconds();
  const Nanoseconds before = by_age ? now - options.audit_age : Nanoseconds(~uint64_t{});
  // An error of the store is met, and said, by the next change.
  const auto base = store->auditBase();
  const auto to = store->oldAudit(before, options.audit_records, kAuditAtOnce);
  if (!base || !to || !*to) return;
  const uint64_t count = (*to)->sequence - base->sequence;
  // Each removal is a record itself: without a margin a full audit would grow and lose one an hour.
  if (count < std::min(options.audit_records / 10, kAuditAtOnce)) return;
  if (count == kAuditAtOnce) audit_due_from = time;
  Index index;
  {
    MutexLock lock(mutex);
    if (broken) return;
    Step step(*this, "manager", "audit.drop", Subject::kOperation);
    step.put(DropAudit{**to});
    step.outcome(
        fmt::format("{} records up to {} are removed, as configured", count, (*to)->sequence));
    index = step.commit(*this);
  }
  (void)settle(index);
}

}  // namespace tidepool::fabric
