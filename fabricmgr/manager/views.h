// SPDX-License-Identifier: Apache-2.0
// What the manager shows: things with the names and sums that readers want beside them. Plain
// values, copies of the state as of one index, all of it durable. What the manager that leads keeps
// in memory alone one that follows it does not know: such fields are empty, a device's health is
// unknown, and an operation's bytes that are done are 0 while it runs.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/model/identity.h"
#include "fabricmgr/model/records.h"
#include "fabricmgr/model/types.h"

namespace tidepool::fabric {

struct PoolInfo {
  Pool pool;
  uint64_t devices = 0;
  Bytes capacity;
  Bytes free;
};

/// Whether a device answers, and obeys. Not kept: found out after every start.
enum class DeviceHealth : uint8_t {
  kUnknown = 0,
  kReachable = 1,
  kUnreachable = 2,
  kSuperseded = 3,  // it obeys another manager of this fabric
  kForeign = 4,     // it is another fabric's
};
std::string_view nameOf(DeviceHealth value);

struct DeviceInfo {
  Device device;
  std::string pool;
  DeviceHealth health = DeviceHealth::kUnknown;
  std::string trouble;  // its last error
  Bytes free;
  Bytes largest_free;  // the longest contiguous run
  uint64_t regions = 0;
  uint64_t hosts = 0;  // heads in use
};

struct HostInfo {
  Host host;
  std::optional<Nanoseconds> lease_left;
  uint64_t regions = 0;
  Bytes held;
};

/// What became of one of many hosts that were to be resumed. kUnchanged: there was nothing to do.
/// kRenewed: it was active, and silent while expiry is held: it has a new lease. kRefused: it is as
/// it was, `text` says why.
enum class Resumed : uint8_t { kUnchanged = 0, kResumed = 1, kRenewed = 2, kRefused = 3 };
std::string_view nameOf(Resumed value);

struct ResumedHost {
  HostId id;
  std::string name;
  Resumed outcome = Resumed::kUnchanged;
  std::string text;
};

struct ResumedHosts {
  Index index;  // of the change; 0: nothing was to change, or it was a dry run
  std::vector<ResumedHost> hosts;
};

struct RegionInfo {
  Region region;
  std::string host;                       // its name; empty if it belongs to nobody
  OperationId operation;                  // that works on it now; 0: none
  RegionId replaces;                      // that is being moved to it; 0: none
  std::optional<Nanoseconds> lease_left;  // its host's
  /// Until its drain goes on by force, at least 1; 0: never, or no drain.
  std::optional<Nanoseconds> drain_left;
};

/// How far a host has come with leaving a region.
struct DrainProgress {
  Bytes left;             // to be moved yet
  uint64_t process = 0;   // of the host, that has it; 0: not known
  std::string waits_for;  // "room", "checkpoint" ...: see DrainProgress in openapi.json
};

/// A part of a list. Ask again with `next` as the cursor; 0: that was all.
template <typename T>
struct Page {
  std::vector<T> items;
  uint64_t next = 0;
  Index index;  // of the state shown
};

/// Where to begin and how much to show. Cursors are ids: they survive changes in between.
struct PageRequest {
  uint64_t cursor = 0;   // show what comes after
  uint32_t limit = 100;  // 1 to 10,000
};

struct RegionFilter {
  std::string host;  // names; empty: any
  std::string device;
  std::string pool;
  std::optional<RegionState> state;
  Selector selector;
};

/// What things are called that are referred to by number.
struct Names {
  std::map<PoolId, std::string> pools;
  std::map<DeviceId, std::string> devices;
  std::map<HostId, std::string> hosts;
};

/// Who would be hurt by removing a device or host.
struct Hurt {
  RegionId region;
  std::string host;
  RegionState state = RegionState::kFree;
  Bytes bytes;  // of it on the device
};

struct RemovalReport {
  bool safe = false;
  std::string text;  // one line for people
  uint64_t regions = 0;
  uint64_t hosts = 0;
  Bytes bytes;
  std::vector<Hurt> hurt;  // the first 100
};

/// Everything a host needs to use one part of its region.
struct Access {
  DeviceId device;
  MemoryClass memory_class = MemoryClass::kCxl;
  std::string address;
  std::vector<Extent> extents;
  /// Memory servers: opens this region on this device in this epoch; a secret of the host's.
  std::string token;
};

struct RegionAccess {
  RegionId region;
  Epoch epoch{};
  Bytes size;
  std::vector<Extent> extents;  // all, in the order in which they make the region up
  std::vector<Access> parts;    // one for each device
};

struct Totals {
  Index index;
  std::string fabric;    // its UUID
  Term term;             // of this manager
  Term superseded_by;    // of the one that devices obey instead; 0: they obey this one
  bool follows = false;  // it does not know of devices' health and hosts' leases: they count as 0
  uint64_t pools = 0, devices = 0, unreachable = 0, foreign = 0, hosts = 0, regions = 0,
           operations = 0;
  uint64_t hosts_fenced = 0;
  uint64_t hosts_silent = 0;    // whose lease is over, and that are not fenced
  uint64_t hosts_held = 0;      // of these: would be fenced, if expiry were not held
  uint64_t leases_expired = 0;  // since the manager started
  Bytes capacity, free;
  std::array<uint64_t, kRegionStates> regions_by_state{};
};

}  // namespace tidepool::fabric
