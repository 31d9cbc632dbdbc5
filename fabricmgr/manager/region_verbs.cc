// SPDX-License-Identifier: Apache-2.0
// Verbs on regions. Thread-safe, see manager.h.
#include <map>
#include <string_view>

#include "fabricmgr/manager/granting.h"
#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

/// For people. `waits_for` may be of an agent that knows more than we do.
std::string textOf(const DrainProgress& progress) {
  static const std::map<std::string_view, std::string_view> kReasons = {
      {"room",
       "there is no room elsewhere: assign more to this host, or give the program more "
       "local memory"},
      {"room-or-device",
       "there is no room elsewhere, or devices may hold its pages (io_uring, "
       "O_DIRECT): assign more to this host, or give the program more --dram"},
      {"checkpoint", "a checkpoint reads it; it goes on by itself"},
      {"table", "its table is being made or restored; it goes on by itself"},
  };
  std::string text = "the host has " + std::to_string(progress.left.value()) + " bytes to move yet";
  const auto reason = kReasons.find(progress.waits_for);
  if (reason == kReasons.end()) return text;
  text += "; process " + std::to_string(progress.process) + " waits: ";
  return text.append(reason->second);
}

Request requestOf(const std::string& verb, const AssignSpec& spec) {
  std::string avoid;
  for (const std::string& domain : spec.constraints.avoid_domains) avoid += domain + ",";
  return Request(
      verb, spec.host, spec.label, spec.pool, spec.size.value(),
      static_cast<uint64_t>(spec.memory_class), static_cast<uint64_t>(spec.constraints.contiguity),
      uint64_t{spec.constraints.max_devices}, static_cast<uint64_t>(spec.constraints.shape), avoid);
}

/// A verb that gives out memory, within its key.
template <typename Body>
Result<Answer> granting(Manager::Impl& impl, const Caller& caller, const Request& request,
                        Body body) {
  auto before = impl.takeKey(caller, request);
  if (!before) return tl::unexpected(before.error());
  if (*before) return **before;
  Granting work(impl, caller, request);
  auto answer = body(work);
  impl.leaveKey(caller);
  return answer;
}

tl::unexpected<Error> wrongState(const Region& region, const char* only) {
  return fail(ErrorCode::kRefused, "region %llu is %s: %s",
              static_cast<unsigned long long>(region.id.value()),
              std::string(nameOf(region.state)).c_str(), only);
}

enum class Whether : uint8_t { kSettled, kOpenToo };

/// The region, if the caller may change it now. One that is being taken away need not be idle, as
/// long as no thread works on it: a device that does not answer keeps nobody from giving back.
Result<RegionEntry*> entryFor(Manager::Impl& impl, const Caller& caller, RegionId id, Whether open)
    TP_REQUIRES(impl.mutex) {
  RegionEntry* entry = impl.state.findRegion(id);
  if (entry == nullptr) return noSuchRegion(id);
  TP_TRY(checkExpected(caller, entry->region.modified));
  if (open == Whether::kSettled || entry->busy) TP_TRY(impl.checkIdle(*entry));
  return entry;
}

Status checkOwner(Manager::Impl& impl, const RegionEntry& entry, const std::string& host)
    TP_REQUIRES(impl.mutex) {
  const HostEntry* owner = impl.state.findHost(entry.region.host);
  if (owner != nullptr && owner->host.name == host) return {};
  return fail(ErrorCode::kPermission, "region %llu is not host %.63s's",
              static_cast<unsigned long long>(entry.region.id.value()), host.c_str());
}

/// Errors: kRefused when the host is alive and nobody said that it is to be hurt.
Status mayTake(Manager::Impl& impl, const RegionEntry& entry, Force force) TP_REQUIRES(impl.mutex) {
  if (force == Force::kForce || !holdsData(entry.region.state)) return {};
  const HostEntry* owner = impl.state.findHost(entry.region.host);
  if (owner == nullptr || impl.leaseLeft(entry.region.host) == Nanoseconds()) return {};
  return fail(ErrorCode::kRefused,
              "host %s is alive and may be using region %llu: drain it, or force it",
              owner->host.name.c_str(), static_cast<unsigned long long>(entry.region.id.value()));
}

Operation regionOperation(Manager::Impl& impl, const Step& step, OperationKind kind,
                          const Caller& caller, const Region& region) TP_REQUIRES(impl.mutex) {
  Operation operation = impl.newOperation(step, kind, caller.actor);
  operation.region = region.id;
  operation.total = region.size;
  return operation;
}

/// What takes the place of a region that is being moved, and can be taken back; null: nothing.
RegionEntry* placeOf(Manager::Impl& impl, const RegionEntry& entry) TP_REQUIRES(impl.mutex) {
  const Operation* operation = impl.state.findOperation(entry.operation);
  if (operation == nullptr || operation->kind != OperationKind::kMove) return nullptr;
  RegionEntry* place = impl.state.findRegion(operation->target);
  const bool there = place != nullptr && place->region.state == RegionState::kAttached &&
                     place->region.host == entry.region.host;
  return there ? place : nullptr;
}

/// A verb of one step on a region that is there, idle, and in state `only`. `body` gets the
/// manager, the step and the region.
template <typename Body>
Result<Answer> onRegion(Manager::Impl& manager, const Caller& caller, const Request& request,
                        RegionId id, RegionState only, Body body) {
  return manager.perform(
      caller, request, Subject::kRegion,
      [&](Manager::Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        const auto entry = entryFor(impl, caller, id, Whether::kSettled);
        if (!entry) return tl::unexpected(entry.error());
        if ((*entry)->region.state != only) {
          return wrongState((*entry)->region,
                            ("it must be " + std::string(nameOf(only)) + " for this").c_str());
        }
        return body.operator()(impl, step, *entry);
      });
}

/// What is left of `extents` below `size`, and what comes after: cut on the device's granularity.
std::vector<Extent> cutAt(Manager::Impl& impl, std::vector<Extent>* extents, uint64_t size)
    TP_REQUIRES(impl.mutex) {
  std::vector<Extent> head, tail;
  uint64_t at = 0;
  for (const Extent& extent : *extents) {
    const uint64_t length = extent.length.value();
    const uint64_t granularity = impl.state.findDevice(extent.device)->device.granularity.value();
    const uint64_t kept = at >= size ? 0 : std::min(length, roundUp(size - at, granularity));
    if (kept > 0) head.push_back({extent.device, extent.offset, Bytes(kept)});
    if (kept < length) tail.push_back({extent.device, extent.offset + kept, Bytes(length - kept)});
    at += length;
  }
  *extents = std::move(head);
  return tail;
}

/// The end of a region becomes one of its own, which is then taken back.
Answer shrink(Manager::Impl& impl, Step* step, const Caller& caller, RegionEntry* entry,
              std::vector<Extent> head, std::vector<Extent> tail) TP_REQUIRES(impl.mutex) {
  Region kept = entry->region;
  kept.extents = std::move(head);
  kept.size = sumOf(kept.extents);
  kept.modified = step->index();
  Region end;
  end.id = RegionId(step->index().value());
  end.name = kept.name;
  end.host = kept.host;
  end.state = RegionState::kReserved;
  end.epoch = nextEpoch(Epoch(), impl.leadership.term());
  end.extents = std::move(tail);
  end.size = sumOf(end.extents);
  end.created = step->time();
  end.modified = step->index();
  step->put(kept);
  step->put(end);
  step->event(Subject::kRegion, kept.id.value(), kept.host, "resized");
  for (const auto& [device, extents] : byDevice(end.extents)) {
    step->put(Intent{kept.id, device, Action::kAttach, kept.epoch, RegionId()});
  }
  const Operation operation = regionOperation(impl, *step, OperationKind::kRelease, caller, end);
  step->put(operation);
  impl.enqueue(kept.id);  // before its end: the device must let go of that first
  impl.fence(step, impl.state.findRegion(end.id));
  return Answer{{}, kept.id.value(), operation.id};
}

}  // namespace

Result<Plan> Manager::plan(const AssignSpec& spec) {
  Impl& impl = *impl_;
  Plan plan;
  {
    MutexLock lock(impl.mutex);
    TP_TRY(impl.checkUsable());
    const auto request = placementOf(impl, spec);
    if (!request) return tl::unexpected(request.error());
    TP_TRY(mayReceive(impl, *impl.state.findHost(request->host)));
    auto extents = place(impl.rooms(request->host), *request);
    if (!extents) return tl::unexpected(extents.error());
    plan = {impl.last_index, std::move(*extents)};
  }
  TP_TRY(impl.settle(plan.index));
  return plan;
}

Result<Answer> Manager::assign(const Caller& caller, const AssignSpec& spec) {
  TP_TRY(checkLabel(spec.label));
  return granting(*impl_, caller, requestOf("region.assign", spec),
                  [&](Granting& work) { return work.assign(spec, nullptr); });
}

Result<Answer> Manager::apply(const Caller& caller, const AssignSpec& spec, const Plan& plan) {
  TP_TRY(checkLabel(spec.label));
  std::string chosen;
  for (const Extent& extent : plan.extents) {
    chosen += std::to_string(extent.device.value()) + ":" + std::to_string(extent.offset) + "+" +
              std::to_string(extent.length.value()) + ",";
  }
  AssignSpec with_plan = spec;  // another plan is another request
  with_plan.constraints.avoid_domains.push_back(chosen);
  const Request request = requestOf("region.apply", with_plan);
  return granting(*impl_, caller, request,
                  [&](Granting& work) { return work.assign(spec, &plan); });
}

Result<Answer> Manager::resize(const Caller& caller, RegionId id, Bytes size,
                               const Constraints& how) {
  if (size.value() == 0 || size.value() > 1ull << 62) {
    return fail(ErrorCode::kInvalidArgument, "a region has 1 byte to 4 EiB; release it instead");
  }
  AssignSpec asked;
  asked.label = std::to_string(id.value());
  asked.size = size;
  asked.constraints = how;
  const Request request = requestOf("region.resize", asked);
  bool larger = false;
  {
    MutexLock lock(impl_->mutex);
    const RegionEntry* entry = impl_->state.findRegion(id);
    larger = entry != nullptr && entry->region.size < size;
  }
  if (larger) {
    return granting(*impl_, caller, request,
                    [&](Granting& work) { return work.grow(id, size, how); });
  }
  return onRegion(
      *impl_, caller, request, id, RegionState::kAttached,
      [&](Impl& impl, Step& step, RegionEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        if (entry->region.size < size) {
          return fail(ErrorCode::kConflict, "the region was resized meanwhile: look at it again");
        }
        std::vector<Extent> head = entry->region.extents;
        std::vector<Extent> tail = cutAt(impl, &head, size.value());
        if (tail.empty() || isDryRun(caller)) return Answer{{}, id.value(), {}};
        return shrink(impl, &step, caller, entry, std::move(head), std::move(tail));
      });
}

Result<Answer> Manager::drainRegion(const Caller& caller, RegionId id, Nanoseconds deadline) {
  const Request request("region.drain", id.value(), deadline.value());
  return onRegion(
      *impl_, caller, request, id, RegionState::kAttached,
      [&](Impl& impl, Step& step, RegionEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        const Region& region = entry->region;
        if (isDryRun(caller)) return Answer();
        Operation operation = regionOperation(impl, step, OperationKind::kDrain, caller, region);
        impl.setDeadline(&operation, deadline);
        step.put(operation);
        step.move(entry, RegionEvent::kDrain);
        return Answer{{}, id.value(), operation.id};
      });
}

Result<Answer> Manager::moveRegion(const Caller& caller, RegionId id, const MoveSpec& spec) {
  if (!spec.device.empty() && !spec.selector.isEverything()) {
    return fail(ErrorCode::kInvalidArgument, "a device or a selector, not both");
  }
  const Request request("region.move", id.value(), spec.device, spec.selector.text(),
                        spec.deadline.value());
  return granting(*impl_, caller, request, [&](Granting& work) { return work.move(id, spec); });
}

Result<Answer> Manager::resumeRegion(const Caller& caller, RegionId id) {
  return onRegion(
      *impl_, caller, Request("region.resume", id.value()), id, RegionState::kDraining,
      [&](Impl& impl, Step& step, RegionEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        const Region& region = entry->region;
        if (impl.state.findHost(region.host)->host.state != HostState::kActive) {
          return fail(ErrorCode::kRefused, "its whole host is being drained: resume the host");
        }
        RegionEntry* place = placeOf(impl, *entry);
        if (place != nullptr) TP_TRY(impl.checkIdle(*place));
        if (isDryRun(caller)) return Answer();
        impl.finish(&step, entry->operation, OperationState::kCancelled,
                    "the drain was called off");
        step.move(entry, RegionEvent::kResume);
        if (place == nullptr) return Answer{{}, id.value(), {}};
        const Operation back =
            regionOperation(impl, step, OperationKind::kDrain, caller, place->region);
        step.put(back);
        step.move(place, RegionEvent::kDrain);
        return Answer{{}, id.value(), back.id};
      });
}

Status Manager::reportDrain(const std::string& host, RegionId id, const DrainProgress& progress) {
  MutexLock lock(impl_->mutex);
  const RegionEntry* entry = impl_->state.findRegion(id);
  if (entry == nullptr) return noSuchRegion(id);
  TP_TRY(checkOwner(*impl_, *entry, host));
  if (entry->region.state != RegionState::kDraining) {
    return wrongState(entry->region, "it is not being drained");
  }
  if (Operation* operation = impl_->state.findOperation(entry->operation)) {
    operation->text = textOf(progress);
  }
  return {};
}

Result<Answer> Manager::releaseRegion(const Caller& caller, RegionId id, const std::string& by_host,
                                      Force force) {
  const Request request("region.release", id.value(), by_host, static_cast<uint64_t>(force));
  const auto release = [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    const auto found = entryFor(impl, caller, id, Whether::kOpenToo);
    if (!found) return tl::unexpected(found.error());
    RegionEntry* entry = *found;
    if (!by_host.empty()) {
      TP_TRY(checkOwner(impl, *entry, by_host));
    } else {
      TP_TRY(mayTake(impl, *entry, force));
    }
    const RegionState now = entry->region.state;
    if (!holdsData(now) && now != RegionState::kLost) {
      return wrongState(entry->region, "it is on its way already");
    }
    if (isDryRun(caller)) return Answer();
    if (impl.isNothing(*entry)) {
      impl.freed(&step, entry, RegionEvent::kWriteOff);
      return Answer{{}, id.value(), {}};
    }
    OperationId operation = entry->operation;
    if (operation == OperationId()) {
      const Operation made =
          regionOperation(impl, step, OperationKind::kRelease, caller, entry->region);
      step.put(made);
      operation = made.id;
    }
    impl.fence(&step, entry);
    return Answer{{}, id.value(), operation};
  };
  return impl_->perform(caller, request, Subject::kRegion, release);
}

Result<Answer> Manager::transferRegion(const Caller& caller, RegionId id,
                                       const std::string& to_host, Force force) {
  const Request request("region.transfer", id.value(), to_host, static_cast<uint64_t>(force));
  return onRegion(
      *impl_, caller, request, id, RegionState::kAttached,
      [&](Impl& impl, Step& step, RegionEntry* entry) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        const HostEntry* to = impl.state.findHost(to_host);
        if (to == nullptr) return noSuch("host", to_host);
        if (to->host.id == entry->region.host) {
          return fail(ErrorCode::kInvalidArgument, "host %s has it already", to_host.c_str());
        }
        TP_TRY(mayReceive(impl, *to));
        TP_TRY(mayTake(impl, *entry, force));
        TP_TRY(impl.checkHeads(entry->region, to->host));
        if (isDryRun(caller)) return Answer();
        Operation operation =
            regionOperation(impl, step, OperationKind::kTransfer, caller, entry->region);
        operation.host = to->host.id;
        step.put(operation);
        impl.fence(&step, entry);
        return Answer{{}, id.value(), operation.id};
      });
}

Result<RegionAccess> Manager::access(const std::string& host, RegionId id) {
  Impl& impl = *impl_;
  RegionAccess access;
  std::vector<DeviceAction> parts;
  Index index;
  {
    MutexLock lock(impl.mutex);
    TP_TRY(impl.checkUsable());
    const RegionEntry* entry = impl.state.findRegion(id);
    if (entry == nullptr) return noSuchRegion(id);
    TP_TRY(checkOwner(impl, *entry, host));
    const Region& region = entry->region;
    if (!holdsData(region.state)) return wrongState(region, "its host may not use it");
    access.region = id;
    access.epoch = region.epoch;
    access.size = region.size;
    access.extents = region.extents;
    for (const auto& [device, extents] : byDevice(region.extents)) {
      const Intent as_granted{id, device, Action::kAttach, region.epoch, RegionId()};
      parts.push_back(impl.actionOf(as_granted, region));
    }
    index = impl.last_index;
  }
  TP_TRY(impl.settle(index));
  for (const DeviceAction& part : parts) {
    auto driver = impl.drivers.of(part.device);
    if (!driver) return tl::unexpected(driver.error());
    auto pass = (*driver)->pass(part.grant);
    if (!pass) return tl::unexpected(pass.error());
    access.parts.push_back({part.device.id, part.device.memory_class, std::move(pass->address),
                            part.grant.extents, std::move(pass->token)});
  }
  return access;
}

}  // namespace tidepool::fabric
