// SPDX-License-Identifier: Apache-2.0
// What the fabric manager knows: pools, devices, extents, hosts, regions, operations. Plain values
// without I/O; lengths and offsets are bytes, times are nanoseconds of the wall clock unless said.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/model/ids.h"
#include "fabricmgr/model/labels.h"
#include "fabricmgr/model/region_state.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::fabric {

/// What kind of memory a device has; kAny only in requests.
enum class MemoryClass : uint8_t { kAny = 0, kCxl = 1, kRemote = 2 };

struct Pool {
  PoolId id;
  std::string name;
  MemoryClass memory_class = MemoryClass::kCxl;
  Index modified;
};

/// What the operator wants of a device. Whether it answers is not kept: see DeviceInfo.
enum class DeviceState : uint8_t {
  kOnline = 0,
  kCordoned = 1,  // keeps what it has, gets nothing new
};

struct Device {
  DeviceId id;
  PoolId pool;
  std::string name;
  MemoryClass memory_class = MemoryClass::kCxl;
  /// CXL: the pool file's path. Memory server: HOST:PORT of its control endpoint.
  std::string address;
  Bytes capacity;
  Bytes granularity;   // extents begin and end at multiples of it; a power of two
  uint32_t heads = 0;  // hosts that may hold regions at once; 0: any number
  std::string domain;  // what fails together: an enclosure, a power feed; may be empty
  DeviceState state = DeviceState::kOnline;
  Index modified;
  Labels labels;
};

/// Contiguous bytes of one device.
struct Extent {
  DeviceId device;
  uint64_t offset = 0;
  Bytes length;
  uint64_t end() const { return offset + length.value(); }
  bool operator==(const Extent&) const = default;
};

enum class HostState : uint8_t {
  kActive = 0,
  kDraining = 1,  // gives everything back, gets nothing new
  kFenced = 2,    // cut off: what it had is taken from it
};

struct Host {
  HostId id;
  std::string name;
  std::string domain;  // its own failure domain; may be empty
  HostState state = HostState::kActive;
  /// How long it keeps its regions without a word from its agent.
  Nanoseconds lease;
  Index modified;
  Labels labels;
};

/// A lease is its host's: one heartbeat renews all its regions. Until when is known in memory only;
/// after a restart of the manager every lease starts afresh.
struct Lease {
  HostId host;
  Nanoseconds length;
  Nanoseconds left;
};

struct Region {
  RegionId id;
  std::string name;  // the user's name for it, `label` in the API; may be empty, need not be unique
  HostId host;       // whose it is, or was, until it is free; 0: an orphan that a device held
  RegionState state = RegionState::kFree;
  Epoch epoch{};
  Bytes size;                   // sum of the extents that it was given
  std::vector<Extent> extents;  // in the order in which the host sees their bytes
  Nanoseconds created;
  Index modified;
  Labels labels;
};

/// Why a long verb works on a region or host.
enum class OperationKind : uint8_t {
  kAssign = 1,   // only while it has to be undone after a failure
  kRelease = 2,  // revoke, scrub, verify, free
  kDrain = 3,    // wait for the host to move off (or the deadline), then as release
  kFence = 4,    // a region of a fenced host: as release, without asking
  kHostDrain = 5,
  kHostFence = 6,
  kTransfer = 7,  // cut the old host off, let the new one in; `host` is the new one
  kMove = 8,      // as drain, once `target` is there for its host
};

enum class OperationState : uint8_t { kRunning = 0, kDone = 1, kFailed = 2, kCancelled = 3 };

struct Operation {
  OperationId id;
  OperationKind kind = OperationKind::kRelease;
  OperationState state = OperationState::kRunning;
  RegionId region;  // of region operations
  HostId host;      // of host operations and transfers
  RegionId target;  // of moves: the region that takes the place of `region`
  Bytes total;
  Bytes done;        // erased and verified so far; as of now, not durable
  std::string text;  // what it waits for, or why it failed
  std::string actor;
  /// Drains: when it goes on by force; 0: never. While it runs the store has `started` and what was
  /// left when that was last written: the time of day may be set meanwhile, what is left may not.
  Nanoseconds deadline;
  Nanoseconds started;
  Nanoseconds finished;
  Index modified;
};

/// What proves that a device erased its part of a region.
struct ScrubEvidence {
  RegionId region;
  DeviceId device;
  Epoch epoch{};
  Bytes bytes;          // erased, and read back
  uint32_t passes = 0;  // times each byte was overwritten
  Bytes nonzero;        // bytes that were not zero when read back: 0, or it is no evidence
  std::string digest;   // SHA-256 of what was read back, in hexadecimal
  Nanoseconds started;
  Nanoseconds finished;
};

// Stable lower-case names, for the store, JSON and people; the inverses know nothing else.
std::string_view nameOf(MemoryClass value);
std::string_view nameOf(DeviceState value);
std::string_view nameOf(HostState value);
std::string_view nameOf(OperationKind value);
std::string_view nameOf(OperationState value);
std::optional<MemoryClass> memoryClassOf(std::string_view name);

/// Pools, devices and hosts are named with 1 to 63 of a-z A-Z 0-9 . _ -, beginning with a letter or
/// digit. Errors: kInvalidArgument, naming `what`.
Status checkName(std::string_view what, std::string_view name);
/// Labels of regions: as checkName(), or empty.
Status checkLabel(std::string_view label);

Bytes sumOf(const std::vector<Extent>& extents);

}  // namespace tidepool::fabric
