// SPDX-License-Identifier: Apache-2.0
// The manager's state in memory: what the store holds, and the indexes that make verbs cheap.
// Changed by apply() alone, whether a change is new or was loaded. Not thread-safe: the manager's
// mutex.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabricmgr/model/journal.h"
#include "fabricmgr/model/types.h"
#include "fabricmgr/placement/free_map.h"
#include "fabricmgr/placement/placement.h"
#include "fabricmgr/store/batch.h"
#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

struct DeviceEntry {
  Device device;
  FreeMap free;
  std::map<RegionId, uint32_t> regions;  // extents of each on this device
  std::map<HostId, uint32_t> heads;      // regions of each host
  Index touched;                         // of the last change that a plan would notice
};

struct HostEntry {
  Host host;
  std::set<RegionId> regions;
  Bytes held;
  Index touched;          // of the last change that its agent would want to know
  OperationId operation;  // drain or fence of the whole host; 0: none
};

struct RegionEntry {
  Region region;
  OperationId operation;  // of its own that works on it; 0: none
  bool busy = false;      // its devices are being waited for
};

class State {
 public:
  /// Everything anew. Errors: kCorrupt when two regions hold the same byte, or something refers to
  /// what is not there.
  Status load(const Loaded& loaded);
  /// `index` is that of the batch.
  void apply(const Change& change, Index index);
  /// Changes that another manager has made, all of them up to `index`, as in News. Errors: kCorrupt
  /// when they do not fit the state; it is then to be loaded anew.
  Status follow(const std::vector<Change>& changes, Index index);

  // Null if it is not there.
  Pool* findPool(const std::string& name);
  DeviceEntry* findDevice(const std::string& name);
  DeviceEntry* findDevice(DeviceId id);
  HostEntry* findHost(const std::string& name);
  HostEntry* findHost(HostId id);
  RegionEntry* findRegion(RegionId id);
  Operation* findOperation(OperationId id);
  const Pool* findPool(PoolId id) const;

  const std::map<PoolId, Pool>& pools() const { return pools_; }
  const std::map<DeviceId, DeviceEntry>& devices() const { return devices_; }
  const std::map<HostId, HostEntry>& hosts() const { return hosts_; }
  const std::map<RegionId, RegionEntry>& regions() const { return regions_; }
  const std::map<OperationId, Operation>& operations() const { return operations_; }
  const std::array<uint64_t, kRegionStates>& regionsByState() const { return by_state_; }
  /// The open intents of one region, by device.
  std::vector<Intent> intentsOf(RegionId region) const;
  const std::map<RegionId, std::map<DeviceId, Intent>>& intents() const { return intents_; }
  /// Regions that were to become the end of this one, while that is not settled.
  std::set<RegionId> growthsOf(RegionId region) const;
  /// The running move whose target the region is; null: it is none's.
  const Operation* moveInto(RegionId target) const;
  /// Regions with an open intent to attach on the device.
  std::set<RegionId> attachingOn(DeviceId device) const;

 private:
  struct Applier;
  class Following;
  void putIntent(const Intent& intent);
  void dropIntent(RegionId region, DeviceId device);
  void hold(const Region& region, Index index);
  void letGo(const Region& region, Index index);
  Status checkLoaded(const Loaded& loaded) const;

  std::map<PoolId, Pool> pools_;
  std::map<DeviceId, DeviceEntry> devices_;
  std::map<HostId, HostEntry> hosts_;
  std::map<RegionId, RegionEntry> regions_;
  std::map<OperationId, Operation> operations_;  // running ones
  std::map<RegionId, OperationId> moves_;        // running ones, by target
  std::map<RegionId, std::map<DeviceId, Intent>> intents_;
  std::set<std::tuple<RegionId, RegionId, DeviceId>> growths_;  // of intents: into, region, device
  std::set<std::pair<DeviceId, RegionId>> attaching_;           // of intents
  std::array<uint64_t, kRegionStates> by_state_{};
  std::unordered_map<std::string, PoolId> pool_names_;
  std::unordered_map<std::string, DeviceId> device_names_;
  std::unordered_map<std::string, HostId> host_names_;
};

/// The extents of `region` on each device, in the region's order.
std::map<DeviceId, std::vector<Extent>> byDevice(const std::vector<Extent>& extents);

}  // namespace tidepool::fabric
