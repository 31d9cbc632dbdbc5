// SPDX-License-Identifier: Apache-2.0
// One step of the state's history: the changes that happen together, the events that tell of them
// and who wanted it. Plain values; describe() is the form in which the audit keeps changes.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "fabricmgr/model/journal.h"
#include "fabricmgr/model/records.h"
#include "fabricmgr/model/types.h"

namespace tidepool::fabric {

struct DropPool {
  PoolId id;
};
struct DropDevice {
  DeviceId id;
};
struct DropHost {
  HostId id;
};
/// The region is as before but for these: its extents need not be written again.
struct SetRegion {
  RegionId id;
  HostId host;
  RegionState state = RegionState::kFree;
  Epoch epoch{};
  Index modified;
};
struct DropRegion {
  RegionId id;
};
/// Of a device, host or region that is there: it is as before but for these. They go with it.
struct SetLabels {
  Subject subject = Subject::kHost;
  uint64_t id = 0;
  Labels labels;
  Index modified;
};
struct DropIntent {
  RegionId region;
  DeviceId device;
};
struct DropKeysBefore {
  Nanoseconds created;
};
struct DropEventsBefore {
  Index index;
};
/// The audit's records up to this one, and this.
struct DropAudit {
  AuditBase to;
};

/// Putting a thing makes it, or replaces it as a whole.
using Change = std::variant<Pool, DropPool, Device, DropDevice, Host, DropHost, Region, SetRegion,
                            DropRegion, SetLabels, Intent, DropIntent, Operation, ScrubEvidence,
                            KeyRecord, DropKeysBefore, DropEventsBefore, DropAudit>;

struct Batch {
  Index index;
  Nanoseconds time;
  std::string actor;
  std::string verb;
  Subject subject = Subject::kRegion;
  uint64_t id = 0;
  std::string outcome;
  std::vector<Change> changes;
  std::vector<Event> events;
};

/// The changes, one a line, that the audit keeps (docs/fabric-manager.md). Keys are left out: they
/// are no state. Words are percent-encoded.
std::string describe(const std::vector<Change>& changes);

/// The line of `changes` that says that records were removed.
std::string describe(const AuditBase& base);

/// `text` with everything but letters, digits and ._-/:+@ as %XX; "-" if it is empty.
std::string encodeWord(std::string_view text);

}  // namespace tidepool::fabric
