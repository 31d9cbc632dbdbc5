// SPDX-License-Identifier: Apache-2.0
// Carries operations on: worker threads take regions off a queue and lead each as far as it goes,
// one device action and one durable step at a time. What meets a device that does not answer is put
// aside until tick(). A region is worked on by one thread at a time (its entry is busy).
#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"
#include "fabricmgr/model/fault_point.h"

namespace tidepool::fabric {
namespace {

/// What came of all actions that a stage needed.
struct Outcome {
  Status status;                         // the first error
  std::map<DeviceId, GrantReport> done;  // what devices hold that have done theirs
  std::vector<ScrubEvidence> evidence;   // of those
};

bool anyRevoke(const std::vector<DeviceAction>& actions) {
  for (const DeviceAction& action : actions) {
    if (action.action == Action::kRevoke) return true;
  }
  return false;
}

/// Every device of the region is to be told.
void putIntents(Step* step, const Region& region, Action action) {
  for (const auto& [device, extents] : byDevice(region.extents)) {
    step->put(Intent{region.id, device, action, region.epoch, RegionId()});
  }
}

void beginScrub(Step* step, RegionEntry* entry) {
  putIntents(step, entry->region, Action::kScrub);
  step->move(entry, RegionEvent::kScrub);
}

/// Fenced, and all of its devices let go of it.
Index detach(Manager::Impl& impl, RegionEntry* entry) TP_REQUIRES(impl.mutex) {
  Step step(impl, "manager", "region.detach", Subject::kRegion);
  step.about(entry->region.id.value());
  impl.dropIntents(&step, entry->region.id);
  if (entry->region.extents.empty()) {  // its devices were removed by force meanwhile
    step.move(entry, RegionEvent::kLose);
    impl.freed(&step, entry, RegionEvent::kWriteOff);
    return step.commit(impl);
  }
  step.move(entry, RegionEvent::kDetach);
  beginScrub(&step, entry);
  return step.commit(impl);
}

Index freeErased(Manager::Impl& impl, RegionEntry* entry,
                 const std::vector<ScrubEvidence>& evidence) TP_REQUIRES(impl.mutex) {
  Step step(impl, "manager", "region.free", Subject::kRegion);
  step.about(entry->region.id.value());
  for (const ScrubEvidence& one : evidence) step.put(one);
  impl.dropIntents(&step, entry->region.id);
  if (entry->region.extents.empty()) {
    step.move(entry, RegionEvent::kLose);
    impl.freed(&step, entry, RegionEvent::kWriteOff);
  } else {
    impl.freed(&step, entry, RegionEvent::kScrubbed);
  }
  return step.commit(impl);
}

Index settled(Manager::Impl& impl, const RegionEntry* entry) TP_REQUIRES(impl.mutex) {
  Step step(impl, "manager", "region.settle", Subject::kRegion);
  step.about(entry->region.id.value());
  impl.dropIntents(&step, entry->region.id);
  for (const RegionId waiting : std::set(impl.stuck)) impl.enqueue(waiting);
  return step.commit(impl);
}

/// The new host is gone: the old one gets the region back, or, if it is gone too, nobody does.
void giveUp(Manager::Impl& impl, Step* step, RegionEntry* entry, const Operation& operation)
    TP_REQUIRES(impl.mutex) {
  const Region& region = entry->region;
  const HostEntry* old = impl.state.findHost(region.host);
  impl.dropIntents(step, region.id);
  Operation changed = operation;
  changed.modified = step->index();
  changed.text = "the new host cannot have it any more";
  if (old != nullptr && old->host.state == HostState::kActive) {
    changed.host = region.host;
    putIntents(step, region, Action::kAttach);
  } else {
    changed.kind = OperationKind::kRelease;
    step->move(entry, RegionEvent::kDetach);
    beginScrub(step, entry);
  }
  step->put(changed);
}

/// First the old host is cut off, then the new one let in.
Index transfer(Manager::Impl& impl, RegionEntry* entry, const std::vector<DeviceAction>& actions,
               const Operation& operation) TP_REQUIRES(impl.mutex) {
  Step step(impl, "manager", "region.transfer", Subject::kRegion);
  const Region& region = entry->region;
  step.about(region.id.value());
  const HostEntry* to = impl.state.findHost(operation.host);
  if (!anyRevoke(actions)) {
    const OperationId id = operation.id;
    impl.attached(&step, entry);
    impl.finish(&step, id, OperationState::kDone, "");
  } else if (to == nullptr || to->host.state != HostState::kActive ||
             !impl.checkHeads(region, to->host)) {
    giveUp(impl, &step, entry, operation);
  } else {
    impl.dropIntents(&step, region.id);
    const HostId old = region.host;
    step.put(SetRegion{region.id, operation.host, region.state, region.epoch, step.index()});
    putIntents(&step, region, Action::kAttach);
    impl.emptied(&step, old);
  }
  return step.commit(impl);
}

/// The step that follows when all went well; returns its index.
Index succeed(Manager::Impl& impl, RegionEntry* entry, const std::vector<DeviceAction>& actions,
              const Outcome& outcome) TP_REQUIRES(impl.mutex) {
  switch (entry->region.state) {
    case RegionState::kFenced:
      if (!impl.isTransferred(*entry)) return detach(impl, entry);
      return transfer(impl, entry, actions, *impl.state.findOperation(entry->operation));
    case RegionState::kScrubbing:
      return freeErased(impl, entry, outcome.evidence);
    default:
      return settled(impl, entry);
  }
}

}  // namespace

void Manager::Impl::startWorkers() {
  for (unsigned i = 0; i < options.workers; ++i) {
    workers.emplace_back([this] { work(); });
  }
}

void Manager::Impl::enqueue(RegionId region) {
  stuck.erase(region);
  if (!queued.insert(region).second) return;
  jobs.push_back(region);
  changed.notifyAll();
}

void Manager::Impl::work() {
  for (;;) {
    RegionId region;
    {
      MutexLock lock(mutex);
      while (!closing && (broken || loading || jobs.empty())) changed.wait(mutex);
      if (closing) return;
      region = jobs.front();
      jobs.pop_front();
      queued.erase(region);
      ++active;  // before anyone can take the empty queue for the end of all work
    }
    while (advance(region)) {
    }
    MutexLock lock(mutex);
    --active;
    changed.notifyAll();
  }
}

namespace {

bool inEffect(const DeviceAction& action, const GrantReport& report) {
  if (report.grant.epoch != action.grant.epoch || report.grant.extents != action.grant.extents) {
    return false;
  }
  if (action.action == Action::kAttach) return report.grant.state == GrantState::kGranted;
  if (action.action == Action::kRevoke) return report.grant.state != GrantState::kGranted;
  return report.grant.state == GrantState::kScrubbed;
}

/// What the device holds once it has done the action.
template <typename Impl>
Result<GrantReport> carryOut(Impl* impl, const DeviceAction& action) {
  GrantReport report{action.grant, {}};
  if (action.action == Action::kScrub) {
    auto evidence = impl->erase(action);
    if (!evidence) return tl::unexpected(evidence.error());
    report.grant.state = GrantState::kScrubbed;
    report.evidence = std::move(*evidence);
    return report;
  }
  TP_TRY(impl->act(action));
  report.grant.state =
      action.action == Action::kAttach ? GrantState::kGranted : GrantState::kRevoked;
  return report;
}

/// Carries all actions out, in order: a device that does not answer must not keep others from
/// cutting a host off. What is `told` to be done is not done again.
template <typename Impl>
Outcome carryOut(Impl* impl, const std::vector<DeviceAction>& actions,
                 const std::map<DeviceId, GrantReport>& told) {
  Outcome outcome;
  for (const DeviceAction& action : actions) {
    const auto before = told.find(action.device.id);
    const bool over = before != told.end() && inEffect(action, before->second);
    auto report = over ? Result<GrantReport>(before->second) : carryOut(impl, action);
    if (report) {
      if (action.action == Action::kScrub) outcome.evidence.push_back(report->evidence);
      outcome.done[action.device.id] = std::move(*report);
    } else if (outcome.status) {
      outcome.status = tl::unexpected(report.error());
    }
  }
  return outcome;
}

}  // namespace

bool Manager::Impl::mustWait(RegionId id) {
  for (const Intent& intent : state.intentsOf(id)) {
    const std::map<RegionId, uint32_t>& there = state.findDevice(intent.device)->regions;
    // Nothing of it there: others may wait for it, so it waits for none of them.
    if (!there.contains(id)) continue;
    for (const RegionId other : state.attachingOn(intent.device)) {
      const RegionEntry* entry = state.findRegion(other);
      if (other == id || entry == nullptr) continue;
      if (holdsData(entry->region.state) || !there.contains(other)) return true;
    }
  }
  return false;
}

bool Manager::Impl::advance(RegionId id) {
  std::vector<DeviceAction> actions;
  std::map<DeviceId, GrantReport> told;
  Index intended, seen;
  RegionState now;
  {
    MutexLock lock(mutex);
    RegionEntry* entry = state.findRegion(id);
    if (broken || closing || leadership.superseded() || entry == nullptr || entry->busy) {
      return false;
    }
    if (!store->mayAct()) {
      stuck.insert(id);
      return false;
    }
    now = entry->region.state;
    if (now == RegionState::kDirty) {
      Step step(*this, "manager", "region.scrub", Subject::kRegion);
      step.about(id.value());
      beginScrub(&step, entry);
      step.commit(*this);
      now = RegionState::kScrubbing;
    }
    actions = actionsOf(entry->region);
    if ((holdsData(now) || now == RegionState::kLost) && actions.empty()) return false;
    for (const DeviceAction& action : actions) {
      const auto found = reported.find({action.device.id, id});
      if (found != reported.end()) told[action.device.id] = found->second;
    }
    if (now == RegionState::kFenced && mustWait(id)) {
      stuck.insert(id);
      return false;
    }
    entry->busy = now != RegionState::kReserved;
    seen = entry->region.modified;
    intended = last_index;
  }
  if (now == RegionState::kReserved) {
    settleReserved(id);
    return false;
  }
  const Status durable = settle(intended);
  faultPoint(FaultPoint::kWorkerIntended);
  Outcome outcome;
  if (durable) outcome = carryOut(this, actions, told);
  faultPoint(FaultPoint::kWorkerAnswered);
  Index done;
  bool more = false;
  {
    MutexLock lock(mutex);
    RegionEntry* entry = state.findRegion(id);
    if (entry == nullptr) return false;
    entry->busy = false;
    if (!durable || broken) return false;
    if (entry->region.modified != seen) return true;  // a device was removed meanwhile
    if (outcome.status) {
      done = succeed(*this, entry, actions, outcome);
      more = state.findRegion(id) != nullptr;
    } else {
      if (Operation* operation = state.findOperation(entry->operation)) {
        operation->text = outcome.status.error().text();
      }
      for (auto& [device, report] : outcome.done) reported[{device, id}] = std::move(report);
      if (entry->region.state == RegionState::kScrubbing &&
          outcome.status.error().code() == ErrorCode::kCorrupt) {
        Step step(*this, "manager", "region.scrub", Subject::kRegion);
        step.about(id.value());
        step.outcome(std::string("failed: ") + outcome.status.error().text());
        dropIntents(&step, id);
        step.move(entry, RegionEvent::kScrubFail);
        done = step.commit(*this);
      }
      stuck.insert(id);
    }
  }
  if (!settle(done)) return false;
  faultPoint(FaultPoint::kWorkerConcluded);
  if (more || !outcome.status || outcome.evidence.empty() || done == Index()) return more;
  for (const DeviceAction& action : actions) {
    if (auto driver = drivers.of(action.device)) (void)(*driver)->forget(id);
  }
  return false;
}

}  // namespace tidepool::fabric
