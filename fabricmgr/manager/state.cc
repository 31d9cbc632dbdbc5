// SPDX-License-Identifier: Apache-2.0
// State: applying changes and keeping the indexes true. Not thread-safe.
#include "fabricmgr/manager/state.h"

#include <algorithm>
#include <concepts>

#include "runtime/base/check.h"

namespace tidepool::fabric {
namespace {

template <typename Map, typename Id>
auto* findIn(Map& map, Id id) {
  const auto found = map.find(id);
  return found == map.end() ? nullptr : &found->second;
}

template <typename Map, typename Names>
auto* findNamed(Map& map, const Names& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? nullptr : findIn(map, found->second);
}

Run runOf(const Extent& extent) { return {extent.offset, extent.length.value()}; }

}  // namespace

std::map<DeviceId, std::vector<Extent>> byDevice(const std::vector<Extent>& extents) {
  std::map<DeviceId, std::vector<Extent>> sorted;
  for (const Extent& extent : extents) sorted[extent.device].push_back(extent);
  return sorted;
}

/// Takes the region's extents, and notes who holds what.
void State::hold(const Region& region, Index index) {
  ++by_state_[static_cast<size_t>(region.state)];
  HostEntry* host = findHost(region.host);
  if (host != nullptr) {
    TP_CHECK(host->regions.insert(region.id).second);
    host->held += region.size;
    host->touched = index;
  }
  for (const Extent& extent : region.extents) {
    DeviceEntry& device = devices_.at(extent.device);
    device.free.take(runOf(extent));
    device.touched = index;
    if (device.regions[region.id]++ == 0 && host != nullptr) ++device.heads[region.host];
  }
}

void State::letGo(const Region& region, Index index) {
  uint64_t& alike = by_state_[static_cast<size_t>(region.state)];
  TP_CHECK_OP(alike, >, 0u);
  --alike;
  HostEntry* host = findHost(region.host);
  if (host != nullptr) {
    TP_CHECK(host->regions.erase(region.id) == 1);
    TP_CHECK_OP(host->held.value(), >=, region.size.value());
    host->held -= region.size;
    host->touched = index;
  }
  for (const Extent& extent : region.extents) {
    const auto device = devices_.find(extent.device);
    if (device == devices_.end()) continue;  // removed by force
    device->second.free.give(runOf(extent));
    device->second.touched = index;
    if (--device->second.regions.at(region.id) > 0) continue;
    device->second.regions.erase(region.id);
    const auto head = device->second.heads.find(region.host);
    if (head != device->second.heads.end() && --head->second == 0) device->second.heads.erase(head);
  }
}

void State::putIntent(const Intent& intent) {
  dropIntent(intent.region, intent.device);
  intents_[intent.region][intent.device] = intent;
  if (intent.action == Action::kAttach) attaching_.insert({intent.device, intent.region});
  if (intent.into != RegionId()) growths_.insert({intent.into, intent.region, intent.device});
}

void State::dropIntent(RegionId region, DeviceId device) {
  const auto found = intents_.find(region);
  if (found == intents_.end()) return;
  const auto intent = found->second.find(device);
  if (intent == found->second.end()) return;
  attaching_.erase({device, region});
  growths_.erase({intent->second.into, region, device});
  found->second.erase(intent);
  if (found->second.empty()) intents_.erase(found);
}

struct State::Applier {
  State& state;
  Index index;

  void operator()(const Pool& pool) {
    state.pools_[pool.id] = pool;
    state.pool_names_[pool.name] = pool.id;
  }
  void operator()(const DropPool& drop) {
    state.pool_names_.erase(state.pools_.at(drop.id).name);
    state.pools_.erase(drop.id);
  }
  void operator()(const Device& device) {
    const auto [entry, made] = state.devices_.try_emplace(device.id);
    if (made) entry->second.free = FreeMap(device.capacity);
    entry->second.device = device;
    entry->second.touched = index;
    state.device_names_[device.name] = device.id;
  }
  void operator()(const DropDevice& drop) {
    state.device_names_.erase(state.devices_.at(drop.id).device.name);
    state.devices_.erase(drop.id);
  }
  void operator()(const Host& host) {
    HostEntry& entry = state.hosts_[host.id];
    entry.host = host;
    entry.touched = index;
    state.host_names_[host.name] = host.id;
  }
  void operator()(const DropHost& drop) {
    TP_CHECK(state.hosts_.at(drop.id).regions.empty());
    state.host_names_.erase(state.hosts_.at(drop.id).host.name);
    state.hosts_.erase(drop.id);
  }
  void operator()(const Region& region) {
    RegionEntry& entry = state.regions_[region.id];
    if (entry.region.id == region.id) state.letGo(entry.region, index);
    entry.region = region;
    state.hold(region, index);
  }
  void operator()(const SetRegion& set) {
    Region& region = state.regions_.at(set.id).region;
    if (region.host != set.host) {
      Region moved = region;
      moved.host = set.host;
      (*this)(moved);
    }
    uint64_t& alike = state.by_state_[static_cast<size_t>(region.state)];
    TP_CHECK_OP(alike, >, 0u);
    --alike;
    ++state.by_state_[static_cast<size_t>(set.state)];
    region.state = set.state;
    region.epoch = set.epoch;
    region.modified = set.modified;
    if (HostEntry* host = state.findHost(region.host)) host->touched = index;
  }
  void operator()(const DropRegion& drop) {
    const auto found = state.regions_.find(drop.id);
    TP_CHECK(found != state.regions_.end());
    state.letGo(found->second.region, index);
    state.regions_.erase(found);
  }
  void operator()(const SetLabels& set) {
    // Neither plans nor agents mind: nothing is touched.
    const auto into = [&](auto& thing) {
      thing.labels = set.labels;
      thing.modified = set.modified;
    };
    if (set.subject == Subject::kDevice) {
      into(state.devices_.at(DeviceId(set.id)).device);
    } else if (set.subject == Subject::kHost) {
      into(state.hosts_.at(HostId(set.id)).host);
    } else {
      into(state.regions_.at(RegionId(set.id)).region);
    }
  }
  void operator()(const Intent& intent) { state.putIntent(intent); }
  void operator()(const DropIntent& drop) { state.dropIntent(drop.region, drop.device); }
  void operator()(const Operation& operation) {
    const bool running = operation.state == OperationState::kRunning;
    const OperationId id = running ? operation.id : OperationId();
    if (operation.region != RegionId()) {
      if (RegionEntry* region = state.findRegion(operation.region)) region->operation = id;
    } else if (HostEntry* host = state.findHost(operation.host)) {
      host->operation = id;
    }
    TP_CHECK(!running || operation.id != OperationId());  // 0 says that there is none
    if (running) {
      state.operations_[operation.id] = operation;
      if (operation.target != RegionId()) state.moves_[operation.target] = operation.id;
    } else {
      state.operations_.erase(operation.id);
      state.moves_.erase(operation.target);
    }
  }
  void operator()(const ScrubEvidence&) {}
  void operator()(const KeyRecord&) {}
  void operator()(const DropKeysBefore&) {}
  void operator()(const DropEventsBefore&) {}
  void operator()(const DropAudit&) {}
};

void State::apply(const Change& change, Index index) { std::visit(Applier{*this, index}, change); }

/// Regions whose bytes, host or state change are taken out first, all of them, and come back as
/// they are now: in between, one may have had what another one has.
class State::Following {
 public:
  Following(State* state, Index index) : state_(*state), index_(index) {}

  Status all(const std::vector<Change>& changes) {
    for (const Change& change : changes) std::visit([this](const auto& c) { takeOut(c); }, change);
    for (int step = 0; step < kSteps; ++step) {
      for (const Change& change : changes) {
        if (stepOf(change) == step) {
          TP_TRY(std::visit([this](const auto& c) { return apply(c); }, change));
        }
      }
    }
    return {};
  }

 private:
  /// What is referred to is there before what refers to it, and goes after it.
  static constexpr int kSteps = 7;
  static int stepOf(const Change& change) {
    if (std::holds_alternative<DropDevice>(change) || std::holds_alternative<DropPool>(change) ||
        std::holds_alternative<DropHost>(change)) {
      return 0;
    }
    if (std::holds_alternative<Pool>(change)) return 1;
    if (std::holds_alternative<Device>(change) || std::holds_alternative<Host>(change)) return 2;
    if (std::holds_alternative<Region>(change) || std::holds_alternative<SetRegion>(change)) {
      return 3;
    }
    const auto* operation = std::get_if<Operation>(&change);
    if (operation == nullptr) return 4;
    return operation->state == OperationState::kRunning ? 6 : 5;
  }

  template <typename T>
  void takeOut(const T& change) {
    if constexpr (std::same_as<T, Region> || std::same_as<T, SetRegion> ||
                  std::same_as<T, DropRegion>) {
      const RegionEntry* entry = state_.findRegion(change.id);
      if (entry == nullptr) return;
      out_.insert_or_assign(change.id, *entry);
      state_.apply(DropRegion{change.id}, index_);
    }
  }
  Status apply(const DropRegion&) { return {}; }
  Status apply(const Region& region) {
    RegionEntry entry = out_[region.id];
    const Labels labels = std::move(entry.region.labels);
    entry.region = region;
    entry.region.labels = labels;
    return putBack(entry);
  }
  Status apply(const SetRegion& set) {
    const auto found = out_.find(set.id);
    if (found == out_.end()) return misfit("the state of a region", set.id.value());
    RegionEntry entry = found->second;
    entry.region.host = set.host;
    entry.region.state = set.state;
    entry.region.epoch = set.epoch;
    entry.region.modified = set.modified;
    return putBack(entry);
  }
  Status putBack(const RegionEntry& entry) {
    const Region& region = entry.region;
    for (const auto& [id, extents] : byDevice(region.extents)) {
      if (!isFree(id, extents)) return misfit("bytes of region", region.id.value());
    }
    state_.apply(region, index_);
    state_.findRegion(region.id)->operation = entry.operation;
    return {};
  }
  bool isFree(DeviceId id, std::vector<Extent> extents) {
    const DeviceEntry* device = state_.findDevice(id);
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    uint64_t end = 0;
    return std::all_of(extents.begin(), extents.end(), [&](const Extent& extent) {
      const bool behind = extent.offset >= end;
      end = runOf(extent).end();
      return behind && device != nullptr && device->free.holds(runOf(extent));
    });
  }
  Status apply(const Device& device) { return withLabels(device, state_.findDevice(device.id)); }
  Status apply(const Host& host) { return withLabels(host, state_.findHost(host.id)); }
  Status apply(const DropPool& drop) { return dropIf(state_.pools_.contains(drop.id), drop); }
  Status apply(const DropDevice& drop) { return dropIf(state_.devices_.contains(drop.id), drop); }
  Status apply(const DropHost& drop) {
    const HostEntry* host = state_.findHost(drop.id);
    if (host != nullptr && !host->regions.empty())
      return misfit("regions of host", drop.id.value());
    return dropIf(host != nullptr, drop);
  }
  Status apply(SetLabels set) {
    const Index* modified = modifiedOf(set);
    if (modified == nullptr) return misfit("labels", set.id);
    set.modified = std::max(set.modified, *modified);  // it may have changed otherwise since
    return plainly(set);
  }
  /// Null: it is not there.
  const Index* modifiedOf(const SetLabels& set) {
    if (set.subject == Subject::kDevice) {
      const DeviceEntry* device = state_.findDevice(DeviceId(set.id));
      return device == nullptr ? nullptr : &device->device.modified;
    }
    if (set.subject == Subject::kHost) {
      const HostEntry* host = state_.findHost(HostId(set.id));
      return host == nullptr ? nullptr : &host->host.modified;
    }
    const RegionEntry* region = state_.findRegion(RegionId(set.id));
    return region == nullptr ? nullptr : &region->region.modified;
  }
  Status apply(const auto& change) { return plainly(change); }

  template <typename T>
  Status withLabels(T thing, const auto* entry) {
    if (entry != nullptr) {
      if constexpr (std::same_as<T, Device>) thing.labels = entry->device.labels;
      if constexpr (std::same_as<T, Host>) thing.labels = entry->host.labels;
    }
    return plainly(thing);
  }
  /// One that was made and dropped in between was never here.
  Status dropIf(bool there, const auto& drop) { return there ? plainly(drop) : Status(); }
  Status plainly(const auto& change) {
    state_.apply(change, index_);
    return {};
  }
  static Status misfit(const char* what, uint64_t id) {
    return fail(ErrorCode::kCorrupt, "the store has %s %llu that do not fit what was there before",
                what, static_cast<unsigned long long>(id));
  }

  State& state_;
  const Index index_;
  std::map<RegionId, RegionEntry> out_;  // as they were
};

Status State::follow(const std::vector<Change>& changes, Index index) {
  return Following(this, index).all(changes);
}

Status State::checkLoaded(const Loaded& loaded) const {
  std::map<DeviceId, FreeMap> rooms;
  for (const Device& device : loaded.devices) rooms.emplace(device.id, FreeMap(device.capacity));
  for (const Region& region : loaded.regions) {
    for (const Extent& extent : region.extents) {
      const auto room = rooms.find(extent.device);
      if (room == rooms.end() || !room->second.holds(runOf(extent))) {
        return fail(ErrorCode::kCorrupt,
                    "the store gives region %llu bytes that another region has, or no device",
                    static_cast<unsigned long long>(region.id.value()));
      }
      room->second.take(runOf(extent));
    }
  }
  return {};
}

Status State::load(const Loaded& loaded) {
  *this = State();
  TP_TRY(checkLoaded(loaded));
  const auto applyAll = [&](const auto& things) {
    for (const auto& thing : things) apply(thing, loaded.index);
  };
  applyAll(loaded.pools);
  applyAll(loaded.devices);
  applyAll(loaded.hosts);
  applyAll(loaded.regions);
  applyAll(loaded.intents);
  applyAll(loaded.running);
  return {};
}

Pool* State::findPool(const std::string& name) { return findNamed(pools_, pool_names_, name); }
DeviceEntry* State::findDevice(const std::string& name) {
  return findNamed(devices_, device_names_, name);
}
DeviceEntry* State::findDevice(DeviceId id) { return findIn(devices_, id); }
HostEntry* State::findHost(const std::string& name) { return findNamed(hosts_, host_names_, name); }
HostEntry* State::findHost(HostId id) { return findIn(hosts_, id); }
RegionEntry* State::findRegion(RegionId id) { return findIn(regions_, id); }
Operation* State::findOperation(OperationId id) { return findIn(operations_, id); }
const Pool* State::findPool(PoolId id) const { return findIn(pools_, id); }

std::vector<Intent> State::intentsOf(RegionId region) const {
  std::vector<Intent> found;
  const auto intents = intents_.find(region);
  if (intents == intents_.end()) return found;
  for (const auto& [device, intent] : intents->second) found.push_back(intent);
  return found;
}

std::set<RegionId> State::growthsOf(RegionId region) const {
  std::set<RegionId> found;
  for (auto at = growths_.lower_bound({region, RegionId(), DeviceId()});
       at != growths_.end() && std::get<0>(*at) == region; ++at) {
    found.insert(std::get<1>(*at));
  }
  return found;
}

const Operation* State::moveInto(RegionId target) const {
  const auto found = moves_.find(target);
  return found == moves_.end() ? nullptr : &operations_.at(found->second);
}

std::set<RegionId> State::attachingOn(DeviceId device) const {
  std::set<RegionId> found;
  for (auto at = attaching_.lower_bound({device, RegionId()});
       at != attaching_.end() && at->first == device; ++at) {
    found.insert(at->second);
  }
  return found;
}

}  // namespace tidepool::fabric
