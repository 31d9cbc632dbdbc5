// SPDX-License-Identifier: Apache-2.0
// After a start, and after a failure of the store: the state is loaded, every device is asked what
// it holds, and what was under way is completed or undone. What a device does not answer for waits.
#include <fmt/format.h>

#include <algorithm>

#include "fabricmgr/manager/impl.h"
#include "fabricmgr/manager/step.h"
#include "fabricmgr/model/fault_point.h"

namespace tidepool::fabric {
namespace {

std::vector<Extent> on(DeviceId device, const Region& region) {
  std::vector<Extent> found;
  for (const Extent& extent : region.extents) {
    if (extent.device == device) found.push_back(extent);
  }
  return found;
}

bool isGranted(const GrantReport& report, const Grant& wanted) {
  return report.grant.state == GrantState::kGranted && report.grant.epoch == wanted.epoch &&
         report.grant.extents == wanted.extents;
}

unsigned long long print(RegionId id) { return id.value(); }

}  // namespace

Status Manager::Impl::recover() {
  std::vector<Device> devices;
  {
    MutexLock lock(mutex);
    auto loaded = store->load();
    if (!loaded) return tl::unexpected(loaded.error());
    TP_TRY(state.load(*loaded));
    last_index = loaded->index;
    highest_index = loaded_at = std::max(highest_index, loaded->index);
    broken = false;
    jobs.clear();
    queued.clear();
    stuck.clear();
    reported.clear();
    inspected.clear();
    progress.clear();
    keys_waiting.clear();
    lease_until.clear();
    for (const auto& [id, host] : state.hosts()) renew(host.host);
    deadlines.clear();
    for (Operation operation : loaded->running) {
      // What was left when it was written down, or 1: its time had come.
      if (operation.deadline == Nanoseconds()) continue;
      const Nanoseconds kept = std::max(operation.deadline, operation.started + Nanoseconds(1));
      setDeadline(&operation, kept - operation.started);
    }
    for (const KeyRecord& key : loaded->pending) keys_waiting[RegionId(key.id)] = key;
    for (const auto& [id, device] : state.devices()) devices.push_back(device.device);
  }
  faultPoint(FaultPoint::kRecoveryLoaded);
  // All of them first: none is told anything if one obeys another manager.
  auto opened = openAll(devices);
  if (!opened) return tl::unexpected(opened.error());
  if (leadership.superseded()) {
    saySuperseded();
    writeLines();
    return {};
  }
  for (const Device& device : devices) {
    const auto driver = opened->find(device.id);
    if (driver == opened->end()) continue;
    const Status in = takeIn(device, std::move(driver->second));
    if (!in && in.error().code() != ErrorCode::kCorrupt) return in;
  }
  faultPoint(FaultPoint::kRecoveryCompared);
  std::vector<RegionId> reserved;
  {
    MutexLock lock(mutex);
    for (const auto& [id, entry] : state.regions()) {
      if (entry.region.state == RegionState::kReserved) reserved.push_back(id);
    }
  }
  for (const RegionId region : reserved) settleReserved(region);
  MutexLock lock(mutex);
  if (broken) return fail(ErrorCode::kIo, "the store failed while it was being loaded");
  for (const auto& [id, entry] : state.regions()) {
    const RegionState now = entry.region.state;
    const bool may_rest = holdsData(now) || now == RegionState::kLost;
    const bool at_rest = may_rest && !state.intents().contains(id);
    if (!at_rest && now != RegionState::kReserved) enqueue(id);
  }
  return {};
}

Status Manager::Impl::bringIn(const Device& device) {
  auto driver = drivers.open(device);
  return driver ? takeIn(device, std::move(*driver)) : Status();
}

Status Manager::Impl::takeIn(const Device& device, std::shared_ptr<DeviceDriver> driver) {
  const auto reports = driver->inspect();
  if (!reports) {
    drivers.note(device.id, tl::unexpected(reports.error()));
    return {};
  }
  std::vector<RegionId> to_forget;
  Index index;
  {
    MutexLock lock(mutex);
    DeviceEntry* entry = state.findDevice(device.id);
    if (entry == nullptr) return {};  // removed meanwhile
    if (const Status agrees = compare(entry, *reports, &to_forget); !agrees) {
      drivers.refuse(device.id, agrees.error().text());
      return agrees;
    }
    inspected.insert(device.id);
    drivers.use(device.id, driver);
    index = last_index;
  }
  TP_TRY(settle(index));
  for (const RegionId region : to_forget) (void)driver->forget(region);
  return {};
}

Status Manager::Impl::compare(DeviceEntry* device, const std::vector<GrantReport>& reports,
                              std::vector<RegionId>* to_forget) {
  const DeviceId id = device->device.id;
  // What it said before is out of date.
  reported.erase(reported.lower_bound({id, RegionId()}),
                 reported.upper_bound({id, RegionId(~0ull)}));
  std::set<RegionId> growing, seen;
  for (const auto& [region, intents] : state.intents()) {
    const auto intent = intents.find(id);
    if (intent != intents.end()) growing.insert(intent->second.into);
  }
  for (const GrantReport& report : reports) {
    const RegionId region = report.grant.region;
    seen.insert(region);
    RegionEntry* entry = state.findRegion(region);
    if (entry == nullptr) {
      if (report.grant.state == GrantState::kScrubbed) {
        to_forget->push_back(region);
      } else {
        TP_TRY(adopt(device, report));
      }
      continue;
    }
    if (entry->region.host == HostId() && report.grant.state != GrantState::kScrubbed &&
        on(id, entry->region).empty()) {
      TP_TRY(adopt(device, report));  // more of an orphan that another device held as well
      continue;
    }
    if (growing.contains(region) || state.intents().contains(region)) {
      reported[{id, region}] = report;
      continue;
    }
    const Grant expected{region, entry->region.epoch, GrantState::kGranted, on(id, entry->region)};
    if (holdsData(entry->region.state) && !entry->busy && !isGranted(report, expected)) {
      lose(entry, device->device);
    }
  }
  // By a copy: losing a region does not change the map, but adopting did.
  const std::map<RegionId, uint32_t> held = device->regions;
  for (const auto& [region, extents] : held) {
    RegionEntry* entry = state.findRegion(region);
    const bool settled = holdsData(entry->region.state) && !entry->busy &&
                         !growing.contains(region) && !state.intents().contains(region);
    if (seen.contains(region)) continue;
    if (settled || (isTransferred(*entry) && !entry->busy)) lose(entry, device->device);
  }
  return {};
}

/// What a device says is not believed unseen: numbers that cannot be are refused, too.
Status Manager::Impl::adopt(DeviceEntry* device, const GrantReport& report) {
  constexpr uint64_t kMost = 1ull << 62;
  if (report.grant.extents.empty()) return {};
  FreeMap room = device->free;
  for (const Extent& extent : report.grant.extents) {
    const Run run{extent.offset, extent.length.value()};
    const bool possible = run.length > 0 && run.length <= kMost && run.offset <= kMost &&
                          report.grant.region.value() <= kMost &&
                          report.grant.epoch.value() <= kMost;
    if (possible && room.holds(run)) {
      room.take(run);
      continue;
    }
    return fail(
        ErrorCode::kCorrupt,
        "device %s holds bytes for region %llu, which the store does not know, and which it "
        "has given to another: was an old store put back?",
        device->device.name.c_str(), print(report.grant.region));
  }
  highest_index = std::max(highest_index, Index(report.grant.region.value()));
  Step step(*this, "manager", "region.adopt", Subject::kRegion);
  step.about(report.grant.region.value());
  step.outcome("held by a device, unknown to the store: to be erased");
  const RegionEntry* before = state.findRegion(report.grant.region);
  Region region = before == nullptr ? Region() : before->region;
  region.id = report.grant.region;
  region.state = RegionState::kFenced;
  region.epoch = nextEpoch(std::max(region.epoch, report.grant.epoch), leadership.term());
  region.extents.insert(region.extents.end(), report.grant.extents.begin(),
                        report.grant.extents.end());
  region.size = sumOf(region.extents);
  region.created = step.time();
  region.modified = step.index();
  step.put(region);
  step.put(Intent{region.id, device->device.id, Action::kRevoke, region.epoch, RegionId()});
  step.event(Subject::kRegion, region.id.value(), HostId(), "adopted", "",
             nameOf(RegionState::kFenced));
  step.commit(*this);
  enqueue(region.id);
  return {};
}

void Manager::Impl::sayLost(const Region& region, const Device& device, const char* how) {
  say(Weight::kError, fmt::format("region {} of host {} is lost: device {} {}", region.id.value(),
                                  hostName(region.host), device.name, how));
}

void Manager::Impl::lose(RegionEntry* entry, const Device& device) {
  sayLost(entry->region, device, "does not hold it any more");
  Step step(*this, "manager", "region.lose", Subject::kRegion);
  step.about(entry->region.id.value());
  step.outcome("a device does not hold it any more");
  if (isTransferred(*entry)) {
    loseTransfer(&step, entry);
  } else {
    step.move(entry, RegionEvent::kLose);
  }
  step.commit(*this);
}

void Manager::Impl::settleReserved(RegionId id) {
  Index index;
  {
    MutexLock lock(mutex);
    RegionEntry* entry = state.findRegion(id);
    if (entry == nullptr || entry->busy || entry->region.state != RegionState::kReserved) return;
    const std::vector<DeviceAction> actions = actionsOf(entry->region);
    size_t granted = 0;
    for (const DeviceAction& action : actions) {
      if (!inspected.contains(action.device.id)) {
        stuck.insert(id);
        return;
      }
      const auto report = reported.find({action.device.id, action.grant.region});
      granted += report != reported.end() && isGranted(report->second, action.grant);
    }
    const bool wanted = checkWanted(*entry).has_value();
    Step step(*this, "manager", "region.recover", Subject::kRegion);
    step.about(id.value());
    const Error why =
        Error::make(ErrorCode::kUnreachable,
                    "the manager ended before the devices had answered: it was undone");
    const std::vector<Intent> intents = state.intentsOf(id);
    RegionEntry* into = intents.empty() ? nullptr : state.findRegion(intents.front().into);
    const bool possible = intents.empty() || intents.front().into == RegionId() ||
                          (into != nullptr && holdsData(into->region.state));
    if (wanted && possible && granted == actions.size() && granted > 0) {
      if (into != nullptr) {
        merge(&step, entry, into);
      } else {
        attached(&step, entry);
      }
    } else if (granted == 0) {
      cancel(&step, entry, why);
    } else {
      undo(&step, entry, why);
    }
    index = step.commit(*this);
  }
  (void)settle(index);  // the next caller sees its failure
  faultPoint(FaultPoint::kRecoverySettled);
}

}  // namespace tidepool::fabric
