// SPDX-License-Identifier: Apache-2.0
// What several verbs do to the state. Everything here runs under the manager's mutex, within a
// step.
#include <fmt/format.h>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {

void Manager::Impl::fence(Step* step, RegionEntry* entry) {
  Region& region = entry->region;
  const std::set<RegionId> growths = state.growthsOf(region.id);
  region.epoch = nextEpoch(region.epoch, leadership.term());
  step->move(entry, RegionEvent::kFence);
  for (const auto& [device, extents] : byDevice(region.extents)) {
    step->put(Intent{region.id, device, Action::kRevoke, region.epoch, RegionId()});
  }
  progress[region.id] = Bytes();
  enqueue(region.id);
  const Error why =
      Error::make(ErrorCode::kConflict, "the region was taken from its host before it had grown");
  for (const RegionId end : growths) takeBack(step, state.findRegion(end), why);
}

void Manager::Impl::dropIntents(Step* step, RegionId region) {
  for (const Intent& intent : state.intentsOf(region)) {
    step->put(DropIntent{region, intent.device});
    reported.erase({intent.device, region});
    reported.erase({intent.device, intent.into});
  }
}

Operation Manager::Impl::newOperation(const Step& step, OperationKind kind,
                                      const std::string& actor) {
  Operation operation;
  operation.id = OperationId(step.index().value());
  operation.kind = kind;
  operation.actor = actor;
  operation.started = step.time();
  operation.modified = step.index();
  return operation;
}

void Manager::Impl::setDeadline(Operation* operation, Nanoseconds left) {
  if (left == Nanoseconds()) return;
  operation->deadline = operation->started + left;
  deadlines[operation->id] = options.clock->now() + left;
}

Nanoseconds Manager::Impl::deadlineLeft(OperationId operation) {
  const auto found = deadlines.find(operation);
  if (found == deadlines.end()) return Nanoseconds();
  const Nanoseconds now = options.clock->now();
  return found->second > now ? found->second - now : Nanoseconds(1);
}

void Manager::Impl::finish(Step* step, OperationId id, OperationState how,
                           const std::string& text) {
  const Operation* running = state.findOperation(id);
  if (running == nullptr) return;
  Operation operation = *running;
  operation.state = how;
  operation.text = text;
  operation.finished = step->time();
  const Nanoseconds left = deadlineLeft(id);
  if (left > Nanoseconds()) operation.deadline = step->time() + left;
  deadlines.erase(id);
  operation.modified = step->index();
  HostId host = operation.host;
  if (const RegionEntry* region = state.findRegion(operation.region)) host = region->region.host;
  step->put(operation);
  step->event(Subject::kOperation, id.value(), host, std::string(nameOf(how)));
}

void Manager::Impl::freed(Step* step, RegionEntry* entry, RegionEvent last) {
  const HostId host = entry->region.host;
  progress.erase(entry->region.id);
  finish(step, entry->operation, OperationState::kDone, "");
  step->move(entry, last);
  emptied(step, host);
}

void Manager::Impl::emptied(Step* step, HostId id) {
  const HostEntry* host = state.findHost(id);
  if (host == nullptr || !host->regions.empty()) return;
  finish(step, host->operation, OperationState::kDone, "");
}

Status Manager::Impl::checkWanted(const RegionEntry& reserved) {
  const HostEntry* host = state.findHost(reserved.region.host);
  if (host == nullptr || host->host.state != HostState::kActive) {
    return fail(ErrorCode::kRefused, "its host is to get nothing any more");
  }
  const Operation* move = state.moveInto(reserved.region.id);
  if (move == nullptr) return {};
  const RegionEntry* moved = state.findRegion(move->region);
  if (moved != nullptr && moved->region.state == RegionState::kAttached) return {};
  return fail(ErrorCode::kRefused, "region %llu was taken from its host before it could be moved",
              static_cast<unsigned long long>(move->region.value()));
}

void Manager::Impl::failMove(Step* step, RegionId target, const Error& why) {
  const Operation* move = state.moveInto(target);
  if (move == nullptr) return;
  RegionEntry* moved = state.findRegion(move->region);
  finish(step, move->id, OperationState::kFailed, why.text());
  if (moved == nullptr || moved->region.state != RegionState::kDraining) return;
  // With its host, which may have been resumed meanwhile without it.
  const HostEntry* host = state.findHost(moved->region.host);
  if (host->host.state == HostState::kActive) step->move(moved, RegionEvent::kResume);
}

void Manager::Impl::attached(Step* step, RegionEntry* entry) {
  const RegionId region = entry->region.id;
  const bool first = entry->region.state == RegionState::kReserved;
  dropIntents(step, region);
  step->move(entry, RegionEvent::kAttach);
  Answer answer{step->index(), region.value(), OperationId()};
  if (const Operation* move = first ? state.moveInto(region) : nullptr) {
    answer.operation = move->id;
    step->move(state.findRegion(move->region), RegionEvent::kDrain);
  }
  resolveKey(step, region, answer);
}

void Manager::Impl::cancel(Step* step, RegionEntry* entry, const Error& why) {
  const RegionId region = entry->region.id;
  failMove(step, region, why);
  dropIntents(step, region);
  step->outcome(std::string("failed: ") + why.text());
  const HostId host = entry->region.host;
  step->move(entry, RegionEvent::kCancel);
  emptied(step, host);
  resolveKey(step, region, tl::unexpected(why));
}

void Manager::Impl::takeBack(Step* step, RegionEntry* entry, const Error& why) {
  const RegionId id = entry->region.id;
  failMove(step, id, why);
  for (const Intent& intent : state.intentsOf(id)) {
    // What was to grow is told its own extents again, before the new ones are taken away.
    const RegionEntry* into = state.findRegion(intent.into);
    if (into == nullptr) continue;
    const Region& whole = into->region;
    const bool any_there = state.findDevice(intent.device)->regions.contains(whole.id);
    const Action action = holdsData(whole.state) || !any_there ? Action::kAttach : Action::kRevoke;
    step->put(Intent{whole.id, intent.device, action, whole.epoch, RegionId()});
    enqueue(whole.id);
  }
  dropIntents(step, id);
  fence(step, entry);
  resolveKey(step, id, tl::unexpected(why));
}

void Manager::Impl::undo(Step* step, RegionEntry* entry, const Error& why) {
  Operation operation = newOperation(*step, OperationKind::kAssign, step->actor());
  operation.region = entry->region.id;
  operation.total = entry->region.size;
  operation.text = why.text();
  step->put(operation);
  step->outcome(std::string("failed, to be undone: ") + why.text());
  takeBack(step, entry, why);
}

void Manager::Impl::merge(Step* step, RegionEntry* end, RegionEntry* into) {
  const Region tail = end->region;
  Region whole = into->region;
  whole.extents.insert(whole.extents.end(), tail.extents.begin(), tail.extents.end());
  whole.size += tail.size;
  whole.modified = step->index();
  dropIntents(step, tail.id);
  step->move(end, RegionEvent::kCancel);
  step->put(whole);
  step->event(Subject::kRegion, whole.id.value(), whole.host, "resized");
  resolveKey(step, tail.id, Answer{step->index(), whole.id.value(), OperationId()});
}

bool Manager::Impl::isTransferred(const RegionEntry& entry) {
  const Operation* operation = state.findOperation(entry.operation);
  return operation != nullptr && operation->kind == OperationKind::kTransfer;
}

void Manager::Impl::loseTransfer(Step* step, RegionEntry* entry) {
  dropIntents(step, entry->region.id);
  finish(step, entry->operation, OperationState::kFailed, "a device lost bytes of it");
  step->move(entry, RegionEvent::kLose);
}

void Manager::Impl::fenceAll(Step* step, HostEntry* host, const std::string& actor) {
  if (host->host.state != HostState::kFenced) {
    Host fenced = host->host;
    fenced.state = HostState::kFenced;
    fenced.modified = step->index();
    step->put(fenced);
    step->event(Subject::kHost, fenced.id.value(), fenced.id, "fenced");
    say(Weight::kWarning,
        fmt::format("host {} is fenced by {}: {} regions of {} bytes are taken and erased",
                    fenced.name, actor, host->regions.size(), host->held.value()));
  }
  const std::set<RegionId> held = host->regions;
  if (held.empty()) return;
  const Operation* running = state.findOperation(host->operation);
  if (running == nullptr || running->kind != OperationKind::kHostFence) {
    finish(step, host->operation, OperationState::kCancelled, "the host is fenced");
    Operation operation = newOperation(*step, OperationKind::kHostFence, actor);
    operation.host = host->host.id;
    operation.total = host->held;
    step->put(operation);
  }
  for (const RegionId id : held) {
    RegionEntry* entry = state.findRegion(id);
    const RegionState now = entry->region.state;
    if (entry->busy) continue;  // the next tick finds it
    if (isNothing(*entry)) {
      freed(step, entry, RegionEvent::kWriteOff);
    } else if (holdsData(now) || now == RegionState::kLost) {
      fence(step, entry);
    }
  }
}

bool Manager::Impl::isNothing(const RegionEntry& entry) {
  const Region& region = entry.region;
  return region.state == RegionState::kLost && region.extents.empty() &&
         state.intentsOf(region.id).empty() && state.growthsOf(region.id).empty();
}

void Manager::Impl::renew(const Host& host) { lease_until[host.id] = awake.now() + host.lease; }

Nanoseconds Manager::Impl::leaseLeft(HostId host) {
  const auto found = lease_until.find(host);
  const Nanoseconds now = awake.now();
  if (found == lease_until.end() || found->second <= now) return Nanoseconds();
  return found->second - now;
}

std::string Manager::Impl::hostName(HostId host) {
  const HostEntry* entry = state.findHost(host);
  return entry == nullptr ? "-" : entry->host.name;
}

Status Manager::Impl::checkIdle(const RegionEntry& entry) {
  const RegionId id = entry.region.id;
  const Operation* operation = state.findOperation(entry.operation);
  const bool moves = operation != nullptr && operation->kind == OperationKind::kMove &&
                     entry.region.state == RegionState::kAttached;
  const bool open = holdsData(entry.region.state) &&
                    (moves || !state.intentsOf(id).empty() || !state.growthsOf(id).empty());
  if (!entry.busy && !open) return {};
  return fail(ErrorCode::kConflict,
              "region %llu is being changed, and its devices are waited for: ask again",
              static_cast<unsigned long long>(entry.region.id.value()));
}

}  // namespace tidepool::fabric
