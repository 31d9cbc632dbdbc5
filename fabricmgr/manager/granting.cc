// SPDX-License-Identifier: Apache-2.0
// Granting: see granting.h. Between its parts the process may die; recovery.cc then finds the
// intents.
#include "fabricmgr/manager/granting.h"

#include "fabricmgr/manager/step.h"
#include "fabricmgr/model/fault_point.h"

namespace tidepool::fabric {
namespace {

/// Errors: kInvalidArgument when the plan was made for another size, or for other constraints. A
/// plan has at least what was asked for, and less than one more grain of its devices.
Status checkWish(Manager::Impl& impl, const Plan& plan, const PlacementRequest& asked)
    TP_REQUIRES(impl.mutex) {
  uint64_t total = 0, grain = 0;
  for (const Extent& extent : plan.extents) {
    total += extent.length.value();
    const DeviceEntry* device = impl.state.findDevice(extent.device);
    grain = std::max(grain, device->device.granularity.value());
  }
  if (total < asked.size.value() || total - asked.size.value() >= grain) {
    return fail(ErrorCode::kInvalidArgument,
                "the plan has %llu bytes, and %llu are asked for: plan again, for that size",
                static_cast<unsigned long long>(total),
                static_cast<unsigned long long>(asked.size.value()));
  }
  const Constraints& how = asked.constraints;
  const size_t devices = byDevice(plan.extents).size();
  if ((how.contiguity == Contiguity::kContiguous && plan.extents.size() > 1) ||
      (how.max_devices != 0 && devices > how.max_devices)) {
    return fail(ErrorCode::kInvalidArgument,
                "the plan has %zu extents on %zu devices, and fewer are asked for: plan again",
                plan.extents.size(), devices);
  }
  return {};
}

/// A client may have made its plan up: all that placement looks at is looked at again.
Status checkChosen(Manager::Impl& impl, const Plan& plan, const PlacementRequest& asked)
    TP_REQUIRES(impl.mutex) {
  const HostEntry& host = *impl.state.findHost(asked.host);
  const auto stale = [&](const char* kind, const std::string& name) {
    return fail(ErrorCode::kConflict,
                "the plan is of index %llu, and %s %s has changed since: plan again",
                static_cast<unsigned long long>(plan.index.value()), kind, name.c_str());
  };
  if (plan.extents.empty()) return fail(ErrorCode::kInvalidArgument, "the plan has no extents");
  if (plan.index > impl.last_index) {
    return fail(ErrorCode::kInvalidArgument, "the plan is of index %llu, which is yet to come",
                static_cast<unsigned long long>(plan.index.value()));
  }
  if (host.host.modified > plan.index) return stale("host", host.host.name);
  std::map<DeviceId, FreeMap> left;
  for (const Extent& extent : plan.extents) {
    const DeviceEntry* device = impl.state.findDevice(extent.device);
    if (device == nullptr) return stale("device", std::to_string(extent.device.value()));
    if (device->touched > plan.index || impl.obstacleOf(*device, asked.host) != Obstacle::kNone) {
      return stale("device", device->device.name);
    }
    if (!suits(device->device, asked)) {
      return fail(ErrorCode::kInvalidArgument,
                  "the plan has device %s, which is not of the class, pool and domains asked for",
                  device->device.name.c_str());
    }
    const uint64_t step = device->device.granularity.value();
    FreeMap& room = left.try_emplace(extent.device, device->free).first->second;
    const Run run{extent.offset, extent.length.value()};
    if (run.length == 0 || run.offset % step != 0 || run.length % step != 0 ||
        run.end() < run.offset || !room.holds(run)) {
      return fail(ErrorCode::kInvalidArgument,
                  "the plan has an extent that is not free on device %s",
                  device->device.name.c_str());
    }
    room.take(run);
  }
  return checkWish(impl, plan, asked);
}

}  // namespace

Result<PlacementRequest> placementOf(Manager::Impl& impl, const AssignSpec& spec) {
  PlacementRequest request;
  const HostEntry* host = impl.state.findHost(spec.host);
  if (host == nullptr) return noSuch("host", spec.host);
  request.host = host->host.id;
  if (!spec.pool.empty()) {
    const Pool* pool = impl.state.findPool(spec.pool);
    if (pool == nullptr) return noSuch("pool", spec.pool);
    request.pool = pool->id;
  }
  request.size = spec.size;
  request.memory_class = spec.memory_class;
  request.constraints = spec.constraints;
  return request;
}

Status mayReceive(Manager::Impl& impl, const HostEntry& host) {
  if (host.host.state != HostState::kActive) {
    return fail(ErrorCode::kRefused, "host %s is %s: it gets nothing until it is resumed",
                host.host.name.c_str(), std::string(nameOf(host.host.state)).c_str());
  }
  if (impl.leaseLeft(host.host.id) == Nanoseconds()) {
    return fail(ErrorCode::kRefused,
                "host %s was not heard of for the length of its lease: is its agent running?",
                host.host.name.c_str());
  }
  return {};
}

Result<Region> Granting::draft(const AssignSpec& spec, const Plan* chosen) {
  TP_TRY(impl_.checkMayChange());
  const auto request = placementOf(impl_, spec);
  if (!request) return tl::unexpected(request.error());
  const HostEntry& host = *impl_.state.findHost(request->host);
  TP_TRY(mayReceive(impl_, host));
  TP_TRY(checkExpected(caller_, host.host.modified));
  Region region;
  region.name = spec.label;
  region.host = request->host;
  if (chosen != nullptr) {
    TP_TRY(checkChosen(impl_, *chosen, *request));
    region.extents = chosen->extents;
  } else {
    auto extents = place(impl_.rooms(request->host), *request);
    if (!extents) return tl::unexpected(extents.error());
    region.extents = std::move(*extents);
  }
  region.size = sumOf(region.extents);
  return region;
}

Result<Region> Granting::draftGrowth(RegionId id, Bytes size, const Constraints& how) {
  TP_TRY(impl_.checkMayChange());
  const RegionEntry* entry = impl_.state.findRegion(id);
  if (entry == nullptr) return noSuchRegion(id);
  TP_TRY(checkExpected(caller_, entry->region.modified));
  TP_TRY(impl_.checkIdle(*entry));
  if (entry->region.state != RegionState::kAttached) {
    return fail(ErrorCode::kRefused, "region %llu is %s: only an attached one can grow",
                static_cast<unsigned long long>(id.value()),
                std::string(nameOf(entry->region.state)).c_str());
  }
  if (entry->region.size >= size) {
    return fail(ErrorCode::kConflict, "the region was resized meanwhile: look at it again");
  }
  const HostEntry& host = *impl_.state.findHost(entry->region.host);
  TP_TRY(mayReceive(impl_, host));
  PlacementRequest request;
  request.size = size - entry->region.size;
  request.host = entry->region.host;
  request.constraints = how;
  // More of what it has: a region is of one class and pool.
  const DeviceEntry* first = impl_.state.findDevice(entry->region.extents.front().device);
  request.pool = first->device.pool;
  auto extents = place(impl_.rooms(request.host), request);
  if (!extents) return tl::unexpected(extents.error());
  Region region;
  region.name = entry->region.name;
  region.host = entry->region.host;
  region.extents = std::move(*extents);
  region.size = sumOf(region.extents);
  return region;
}

namespace {

template <typename Id, typename Field>
Id commonOf(Manager::Impl& impl, const Region& region, Field field) TP_REQUIRES(impl.mutex) {
  const Id first = impl.state.findDevice(region.extents.front().device)->device.*field;
  for (const Extent& extent : region.extents) {
    if (impl.state.findDevice(extent.device)->device.*field != first) return Id();
  }
  return first;
}

/// The devices that a region may be moved to. Errors: see Manager::moveRegion().
Result<std::vector<DeviceRoom>> roomsForMove(Manager::Impl& impl, const Region& region,
                                             const MoveSpec& spec, MemoryClass memory_class)
    TP_REQUIRES(impl.mutex) {
  const auto here = byDevice(region.extents);
  const auto number = static_cast<unsigned long long>(region.id.value());
  if (!spec.device.empty()) {
    const DeviceEntry* to = impl.state.findDevice(spec.device);
    if (to == nullptr) return noSuch("device", spec.device);
    const Device& device = to->device;
    if (memory_class != MemoryClass::kAny && device.memory_class != memory_class) {
      return fail(ErrorCode::kRefused, "device %s is of class %s, and region %llu is of class %s",
                  device.name.c_str(), std::string(nameOf(device.memory_class)).c_str(), number,
                  std::string(nameOf(memory_class)).c_str());
    }
    if (here.size() == 1 && here.contains(device.id)) {
      return fail(ErrorCode::kInvalidArgument, "region %llu is on device %s already", number,
                  device.name.c_str());
    }
    return std::vector{DeviceRoom{&device, &to->free, impl.obstacleOf(*to, region.host)}};
  }
  std::vector<DeviceRoom> found;
  bool any = false;
  for (const DeviceRoom& room : impl.rooms(region.host)) {
    if (!spec.selector.matches(room.device->labels)) continue;
    any = true;
    if (!here.contains(room.device->id)) found.push_back(room);
  }
  if (!any) return fail(ErrorCode::kNotFound, "no device has labels as selected");
  return found;
}

Result<std::vector<Extent>> placeMove(Manager::Impl& impl, const Region& region,
                                      const MoveSpec& spec) TP_REQUIRES(impl.mutex) {
  PlacementRequest request;
  request.size = region.size;
  request.host = region.host;
  request.memory_class = commonOf<MemoryClass>(impl, region, &Device::memory_class);
  if (spec.device.empty() && spec.selector.isEverything()) {
    request.pool = commonOf<PoolId>(impl, region, &Device::pool);
  }
  const auto rooms = roomsForMove(impl, region, spec, request.memory_class);
  if (!rooms) return tl::unexpected(rooms.error());
  auto extents = place(*rooms, request);
  if (extents || !spec.device.empty()) return extents;
  return fail(extents.error().code(), "on devices that it is not on: %s", extents.error().text());
}

}  // namespace

Result<Region> Granting::draftMove(RegionId id, const MoveSpec& spec) {
  TP_TRY(impl_.checkMayChange());
  const RegionEntry* entry = impl_.state.findRegion(id);
  if (entry == nullptr) return noSuchRegion(id);
  TP_TRY(checkExpected(caller_, entry->region.modified));
  TP_TRY(impl_.checkIdle(*entry));
  const Region& moved = entry->region;
  if (moved.state != RegionState::kAttached) {
    return fail(ErrorCode::kRefused, "region %llu is %s: only an attached one can be moved",
                static_cast<unsigned long long>(id.value()),
                std::string(nameOf(moved.state)).c_str());
  }
  if (const Operation* move = impl_.state.moveInto(id)) {
    return fail(ErrorCode::kRefused,
                "region %llu is just taking the place of region %llu: wait for operation %llu",
                static_cast<unsigned long long>(id.value()),
                static_cast<unsigned long long>(move->region.value()),
                static_cast<unsigned long long>(move->id.value()));
  }
  TP_TRY(mayReceive(impl_, *impl_.state.findHost(moved.host)));
  auto extents = placeMove(impl_, moved, spec);
  if (!extents) return tl::unexpected(extents.error());
  Region region;
  region.name = moved.name;
  region.host = moved.host;
  region.extents = std::move(*extents);
  region.size = sumOf(region.extents);
  return region;
}

void Granting::putMove(Step* step, RegionId region) {
  const Region& moved = impl_.state.findRegion(moved_)->region;
  Operation move = impl_.newOperation(*step, OperationKind::kMove, caller_.actor);
  move.region = moved_;
  move.target = region;
  move.total = moved.size;
  impl_.setDeadline(&move, move_deadline_);
  step->put(move);
  if (moved.labels.empty()) return;
  step->put(SetLabels{Subject::kRegion, region.value(), moved.labels, step->index()});
}

Index Granting::intend(const Region& drafted, RegionId into) {
  Step step(impl_, caller_.actor, request_.verb(), Subject::kRegion);
  Region region = drafted;
  region.id = RegionId(step.index().value());
  region.state = RegionState::kReserved;
  region.epoch = nextEpoch(Epoch(), impl_.leadership.term());
  region.created = step.time();
  region.modified = step.index();
  step.about(region.id.value());
  step.outcome("accepted");
  step.put(region);
  step.event(Subject::kRegion, region.id.value(), region.host,
             std::string(nameOf(RegionEvent::kReserve)), nameOf(RegionState::kFree),
             nameOf(RegionState::kReserved));
  if (moved_ != RegionId()) putMove(&step, region.id);
  RegionEntry* whole = impl_.state.findRegion(into);
  const Epoch epoch = whole == nullptr ? region.epoch : whole->region.epoch;
  for (const auto& [device, extents] : byDevice(region.extents)) {
    const Intent intent{region.id, device, Action::kAttach, epoch, into};
    step.put(intent);
    actions_.push_back(impl_.actionOf(intent, region));
  }
  impl_.rememberKey(&step, caller_, request_, KeyRecord::State::kPending, region.id.value(),
                    Answer());
  impl_.state.findRegion(region.id)->busy = true;
  if (whole != nullptr) whole->busy = true;
  return step.commit(impl_);
}

Result<Answer> Granting::conclude(RegionId id, RegionId into_id, size_t asked, const Status& told,
                                  Index* index) {
  RegionEntry* entry = impl_.state.findRegion(id);
  RegionEntry* into = impl_.state.findRegion(into_id);
  if (entry != nullptr) entry->busy = false;
  if (into != nullptr) into->busy = false;
  TP_TRY(impl_.checkUsable());
  Step step(impl_, caller_.actor, request_.verb(), Subject::kRegion);
  step.about(id.value());
  Result<Answer> answer = Answer{step.index(), into != nullptr ? into_id.value() : id.value(), {}};
  const bool moves = moved_ != RegionId();
  const Status good = told && moves ? impl_.checkWanted(*entry) : told;
  if (!good) {
    answer = tl::unexpected(good.error());
    // The last one asked may have done it before its answer got lost; the others were told to.
    const bool nothing =
        !told && (asked == 0 || (asked == 1 && !outcomeUnknown(told.error().code())));
    if (nothing) {
      impl_.cancel(&step, entry, good.error());
    } else {
      impl_.undo(&step, entry, good.error());
    }
  } else if (into != nullptr) {
    impl_.merge(&step, entry, into);
  } else {
    impl_.attached(&step, entry);
    if (moves) answer->operation = OperationId(id.value());  // made by the same step
  }
  impl_.rememberKey(&step, caller_, request_,
                    good ? KeyRecord::State::kDone : KeyRecord::State::kFailed,
                    good ? answer->id : id.value(), answer);
  *index = step.commit(impl_);
  return answer;
}

Result<Answer> Granting::carryOut(RegionId id, RegionId into, Index intended) {
  Status told = impl_.settle(intended);
  faultPoint(FaultPoint::kGrantIntended);
  if (!told) {
    MutexLock lock(impl_.mutex);  // what is durable of it is found out when the state is loaded
    if (RegionEntry* entry = impl_.state.findRegion(id)) entry->busy = false;
    if (RegionEntry* entry = impl_.state.findRegion(into)) entry->busy = false;
    return tl::unexpected(told.error());
  }
  size_t asked = 0;
  for (const DeviceAction& action : actions_) {
    ++asked;
    told = impl_.act(action);
    if (!told) break;
    faultPoint(FaultPoint::kGrantDeviceDone);
  }
  Index index;
  Result<Answer> answer = Answer();
  {
    MutexLock lock(impl_.mutex);
    answer = conclude(id, into, asked, told, &index);
  }
  const Status durable = impl_.settle(index);
  faultPoint(FaultPoint::kGrantConcluded);
  if (!durable) return tl::unexpected(durable.error());
  return answer;
}

namespace {

/// Marks the verb as active until the end of the scope; see Manager::Impl::active.
class Activity {
 public:
  void begin(Manager::Impl& impl) TP_REQUIRES(impl.mutex) {
    ++impl.active;
    impl_ = &impl;
  }
  ~Activity() {
    if (impl_ == nullptr) return;
    MutexLock lock(impl_->mutex);
    --impl_->active;
    impl_->changed.notifyAll();
  }

 private:
  Manager::Impl* impl_ = nullptr;
};

}  // namespace

Result<Answer> Granting::assign(const AssignSpec& spec, const Plan* chosen) {
  Activity activity;
  Index intended;
  {
    MutexLock lock(impl_.mutex);
    const auto region = draft(spec, chosen);
    if (!region) return tl::unexpected(region.error());
    if (isDryRun(caller_)) return Answer();
    activity.begin(impl_);
    intended = intend(*region, RegionId());
  }
  return carryOut(RegionId(intended.value()), RegionId(), intended);
}

Result<Answer> Granting::move(RegionId moved, const MoveSpec& spec) {
  Activity activity;
  Index intended;
  {
    MutexLock lock(impl_.mutex);
    const auto region = draftMove(moved, spec);
    if (!region) return tl::unexpected(region.error());
    if (isDryRun(caller_)) return Answer();
    moved_ = moved;
    move_deadline_ = spec.deadline;
    activity.begin(impl_);
    intended = intend(*region, RegionId());
  }
  return carryOut(RegionId(intended.value()), RegionId(), intended);
}

Result<Answer> Granting::grow(RegionId into, Bytes size, const Constraints& how) {
  Activity activity;
  Index intended;
  {
    MutexLock lock(impl_.mutex);
    const auto region = draftGrowth(into, size, how);
    if (!region) return tl::unexpected(region.error());
    if (isDryRun(caller_)) return Answer();
    activity.begin(impl_);
    intended = intend(*region, into);
  }
  return carryOut(RegionId(intended.value()), into, intended);
}

}  // namespace tidepool::fabric
