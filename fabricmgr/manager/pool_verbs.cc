// SPDX-License-Identifier: Apache-2.0
// Verbs on pools and devices. Thread-safe, see manager.h.
#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"

namespace tidepool::fabric {
namespace {

constexpr uint64_t kDefaultGranularity = 2 * kMiB;

Status checkSpec(const DeviceSpec& spec) {
  TP_TRY(checkName("device", spec.name));
  TP_TRY(checkName("pool", spec.pool));
  if (!spec.domain.empty()) TP_TRY(checkName("domain", spec.domain));
  if (spec.address.empty() || spec.address.size() > 4000) {
    return fail(ErrorCode::kInvalidArgument, "a device needs an address of 1 to 4000 bytes");
  }
  const uint64_t granularity = spec.granularity.value();
  if (granularity != 0 &&
      ((granularity & (granularity - 1)) != 0 || granularity < kPageSize || granularity > kGiB)) {
    return fail(ErrorCode::kInvalidArgument,
                "the granularity is a power of two from 4 KiB to 1 GiB, not %llu",
                static_cast<unsigned long long>(granularity));
  }
  return {};
}

Device deviceOf(const DeviceSpec& spec) {
  Device device;
  device.name = spec.name;
  device.address = spec.address;
  device.capacity = spec.capacity;
  device.granularity =
      spec.granularity.value() == 0 ? Bytes(kDefaultGranularity) : spec.granularity;
  device.heads = spec.heads;
  device.domain = spec.domain;
  return device;
}

/// Asks the device itself: it must hold nothing, and have the room that it is said to have.
Status probe(DeviceDriver& driver, Device* device) {
  const auto capacity = driver.capacity();
  if (!capacity) return tl::unexpected(capacity.error());
  const auto held = driver.inspect();
  if (!held) return tl::unexpected(held.error());
  for (const GrantReport& report : *held) {
    if (report.grant.state == GrantState::kScrubbed) continue;
    return fail(ErrorCode::kConflict,
                "device %s holds bytes for region %llu, which this manager did not give: erase it, "
                "and its record of grants, first",
                device->name.c_str(), static_cast<unsigned long long>(report.grant.region.value()));
  }
  if (device->capacity.value() == 0) {
    device->capacity = Bytes(roundDown(capacity->value(), device->granularity.value()));
  }
  if (device->capacity.value() == 0 || device->capacity > *capacity ||
      device->capacity.value() % device->granularity.value() != 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        "device %s has %llu bytes: the capacity is a multiple of the granularity, up to that",
        device->name.c_str(), static_cast<unsigned long long>(capacity->value()));
  }
  return {};
}

/// Fills in what the device has of its pool, if it may become one of it.
Status joinPool(Manager::Impl& impl, const DeviceSpec& spec, Device* device)
    TP_REQUIRES(impl.mutex) {
  const Pool* pool = impl.state.findPool(spec.pool);
  if (pool == nullptr) return noSuch("pool", spec.pool);
  if (impl.state.findDevice(spec.name) != nullptr) {
    return fail(ErrorCode::kConflict, "there is a device %s already", spec.name.c_str());
  }
  for (const auto& [id, other] : impl.state.devices()) {
    if (other.device.address != spec.address) continue;
    return fail(ErrorCode::kConflict, "device %s has this address already",
                other.device.name.c_str());
  }
  device->pool = pool->id;
  device->memory_class = pool->memory_class;
  return {};
}

}  // namespace

Result<Answer> Manager::addPool(const Caller& caller, const std::string& name,
                                MemoryClass memory_class) {
  TP_TRY(checkName("pool", name));
  if (memory_class != MemoryClass::kCxl && memory_class != MemoryClass::kRemote) {
    return fail(ErrorCode::kInvalidArgument, "a pool is of class cxl or remote");
  }
  const Request request("pool.add", name, static_cast<uint64_t>(memory_class));
  const auto add = [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    if (impl.state.findPool(name) != nullptr) {
      return fail(ErrorCode::kConflict, "there is a pool %s already", name.c_str());
    }
    if (isDryRun(caller)) return Answer();
    const PoolId id(step.index().value());
    step.put(Pool{id, name, memory_class, step.index()});
    step.event(Subject::kPool, id.value(), HostId(), "added");
    return Answer{{}, id.value(), {}};
  };
  return impl_->perform(caller, request, Subject::kPool, add);
}

Result<Answer> Manager::removePool(const Caller& caller, const std::string& name) {
  const auto remove = [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    const Pool* pool = impl.state.findPool(name);
    if (pool == nullptr) return noSuch("pool", name);
    TP_TRY(checkExpected(caller, pool->modified));
    for (const auto& [id, device] : impl.state.devices()) {
      if (device.device.pool != pool->id) continue;
      return fail(ErrorCode::kRefused, "pool %s has device %s: remove its devices first",
                  name.c_str(), device.device.name.c_str());
    }
    if (isDryRun(caller)) return Answer();
    const PoolId id = pool->id;
    step.put(DropPool{id});
    step.event(Subject::kPool, id.value(), HostId(), "removed");
    return Answer{{}, id.value(), {}};
  };
  return impl_->perform(caller, Request("pool.remove", name), Subject::kPool, remove);
}

Result<Answer> Manager::addDevice(const Caller& caller, const DeviceSpec& spec) {
  TP_TRY(checkSpec(spec));
  const Request request("device.add", spec.name, spec.pool, spec.address, spec.domain,
                        spec.capacity.value(), spec.granularity.value(), uint64_t{spec.heads});
  Device device = deviceOf(spec);
  Result<std::optional<Answer>> before = impl_->takeKey(caller, request);
  if (!before) return tl::unexpected(before.error());
  if (*before) return **before;
  impl_->leaveKey(caller);
  {
    MutexLock lock(impl_->mutex);
    TP_TRY(impl_->checkMayChange());
    TP_TRY(joinPool(*impl_, spec, &device));
  }
  std::shared_ptr<DeviceDriver> driver;
  if (!isDryRun(caller)) {
    auto opened = impl_->options.drivers(device, impl_->leadership);
    if (!opened) return tl::unexpected(opened.error());
    driver = std::move(*opened);
    if (const Status good = probe(*driver, &device); !good) {
      (void)driver->release();  // refused if it is this fabric's under another name, and in use
      return tl::unexpected(good.error());
    }
  }
  const auto add = [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    TP_TRY(joinPool(impl, spec, &device));
    if (isDryRun(caller)) return Answer();
    device.id = DeviceId(step.index().value());
    device.modified = step.index();
    step.put(device);
    step.event(Subject::kDevice, device.id.value(), HostId(), "added");
    return Answer{{}, device.id.value(), {}};
  };
  auto answer = impl_->perform(caller, request, Subject::kDevice, add);
  if (!answer && driver != nullptr) (void)driver->release();
  driver.reset();  // a pool file has one user
  if (answer && answer->index != Index() && device.id == DeviceId(answer->id)) {
    TP_TRY(impl_->bringIn(device));
  }
  return answer;
}

namespace {

/// Cordons or uncordons.
Result<Answer> setDeviceState(Manager::Impl& manager, const Caller& caller, const std::string& name,
                              DeviceState wanted, const char* verb, const char* what) {
  const auto set = [&](Manager::Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
    const DeviceEntry* entry = impl.state.findDevice(name);
    if (entry == nullptr) return noSuch("device", name);
    TP_TRY(checkExpected(caller, entry->device.modified));
    if (isDryRun(caller)) return Answer();
    Device device = entry->device;
    device.state = wanted;
    device.modified = step.index();
    step.put(device);
    step.event(Subject::kDevice, device.id.value(), HostId(), what);
    return Answer{{}, device.id.value(), {}};
  };
  return manager.perform(caller, Request(verb, name), Subject::kDevice, set);
}

RemovalReport whoIsHurt(Manager::Impl& impl, const DeviceEntry& entry) TP_REQUIRES(impl.mutex) {
  constexpr size_t kShown = 100;
  RemovalReport report;
  report.regions = entry.regions.size();
  report.hosts = entry.heads.size();
  for (const auto& [id, extents] : entry.regions) {
    const Region& region = impl.state.findRegion(id)->region;
    Hurt hurt{id, "", region.state, Bytes()};
    if (const HostEntry* host = impl.state.findHost(region.host)) hurt.host = host->host.name;
    for (const Extent& extent : region.extents) {
      if (extent.device == entry.device.id) hurt.bytes += extent.length;
    }
    report.bytes += hurt.bytes;
    if (report.hurt.size() < kShown) report.hurt.push_back(std::move(hurt));
  }
  report.safe = report.regions == 0;
  report.text = report.safe ? "nothing is on it"
                            : std::to_string(report.regions) + " regions of " +
                                  std::to_string(report.hosts) + " hosts have " +
                                  std::to_string(report.bytes.value()) + " bytes on it";
  return report;
}

/// The device is gone: the regions that had bytes there are lost.
void loseDevice(Manager::Impl& impl, Step* step, DeviceEntry* entry) TP_REQUIRES(impl.mutex) {
  const DeviceId device = entry->device.id;
  const std::map<RegionId, uint32_t> held = entry->regions;
  const Error why =
      Error::make(ErrorCode::kUnreachable, "a device was removed before it had answered");
  for (const auto& [id, count] : held) {
    RegionEntry* region = impl.state.findRegion(id);
    if (region->region.state == RegionState::kReserved) impl.takeBack(step, region, why);
    Region rest = region->region;
    std::erase_if(rest.extents, [&](const Extent& extent) { return extent.device == device; });
    rest.size = sumOf(rest.extents);
    rest.modified = step->index();
    step->put(rest);
    if (holdsData(rest.state)) {
      impl.sayLost(rest, entry->device, "was removed by force");
      step->move(region, RegionEvent::kLose);
    } else if (impl.isTransferred(*region)) {
      impl.loseTransfer(step, region);
    }
    impl.enqueue(id);
  }
  for (const auto& [id, intents] : std::map(impl.state.intents())) {
    if (intents.contains(device)) step->put(DropIntent{id, device});
  }
}

}  // namespace

Result<Answer> Manager::cordonDevice(const Caller& caller, const std::string& name) {
  return setDeviceState(*impl_, caller, name, DeviceState::kCordoned, "device.cordon", "cordoned");
}

Result<Answer> Manager::uncordonDevice(const Caller& caller, const std::string& name) {
  return setDeviceState(*impl_, caller, name, DeviceState::kOnline, "device.uncordon",
                        "uncordoned");
}

// A step for each region: an operation each, which is named after the step's index. What a call
// that was cut off has not drained, the next one does.
Result<Answer> Manager::drainDevice(const Caller& caller, const std::string& name,
                                    Nanoseconds deadline) {
  auto answer =
      setDeviceState(*impl_, caller, name, DeviceState::kCordoned, "device.drain", "cordoned");
  if (!answer || isDryRun(caller)) return answer;
  std::map<RegionId, uint32_t> held;
  {
    MutexLock lock(impl_->mutex);
    if (const DeviceEntry* entry = impl_->state.findDevice(name)) held = entry->regions;
  }
  Caller each;
  each.actor = caller.actor;
  std::optional<Error> busy;
  for (const auto& [id, count] : held) {
    const auto drained = drainRegion(each, id, deadline);
    if (drained) {
      answer->index = drained->index;
    } else if (drained.error().code() == ErrorCode::kConflict) {
      busy = drained.error();  // it is being given out or changed: the others come first
    } else if (drained.error().code() != ErrorCode::kRefused &&
               drained.error().code() != ErrorCode::kNotFound) {
      return drained;  // refused: it is on its way back already
    }
  }
  if (busy) return tl::unexpected(*busy);
  return answer;
}

Result<RemovalReport> Manager::checkRemoveDevice(const std::string& name) {
  return shown(*impl_, [&](Impl& impl) TP_REQUIRES(impl.mutex) -> Result<RemovalReport> {
    const DeviceEntry* entry = impl.state.findDevice(name);
    if (entry == nullptr) return noSuch("device", name);
    return whoIsHurt(impl, *entry);
  });
}

Result<Answer> Manager::removeDevice(const Caller& caller, const std::string& name, Force force) {
  auto answer = impl_->perform(
      caller, Request("device.remove", name, static_cast<uint64_t>(force)), Subject::kDevice,
      [&](Impl& impl, Step& step) TP_REQUIRES(impl.mutex) -> Result<Answer> {
        DeviceEntry* entry = impl.state.findDevice(name);
        if (entry == nullptr) return noSuch("device", name);
        TP_TRY(checkExpected(caller, entry->device.modified));
        if (!entry->regions.empty() && force == Force::kNo) {
          return fail(ErrorCode::kRefused,
                      "%s: drain and release them first, or force it and lose them",
                      whoIsHurt(impl, *entry).text.c_str());
        }
        for (const auto& [id, count] : entry->regions) {
          const RegionEntry* region = impl.state.findRegion(id);
          const RegionState now = region->region.state;
          if (region->busy && (now == RegionState::kReserved || holdsData(now))) {
            return fail(ErrorCode::kConflict, "region %llu is being given out on it: ask again",
                        static_cast<unsigned long long>(id.value()));
          }
        }
        if (isDryRun(caller)) return Answer();
        const DeviceId id = entry->device.id;
        loseDevice(impl, &step, entry);
        step.put(DropDevice{id});
        step.event(Subject::kDevice, id.value(), HostId(), "removed");
        return Answer{{}, id.value(), {}};
      });
  if (answer && answer->index != Index()) impl_->letGo(DeviceId(answer->id));
  return answer;
}

}  // namespace tidepool::fabric
