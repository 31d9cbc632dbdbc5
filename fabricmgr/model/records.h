// SPDX-License-Identifier: Apache-2.0
// What is written down for others to read: events (what changed, for watchers) and audit records
// (who did what, chained by hashes). Plain values; times are nanoseconds of the wall clock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/model/ids.h"

namespace tidepool::fabric {

/// What an event or audit record is about.
enum class Subject : uint8_t { kPool = 1, kDevice = 2, kHost = 3, kRegion = 4, kOperation = 5 };
std::string_view nameOf(Subject subject);

struct Event {
  Index index;
  uint32_t ordinal = 0;  // several events of one index: 0, 1, ...
  Nanoseconds time;
  Subject subject = Subject::kRegion;
  uint64_t id = 0;
  HostId host;       // whom it concerns, for watches of one host; 0: nobody in particular
  std::string what;  // "reserve", "attach", "added", "removed", "cordoned", "finished" ...
  std::string from;  // states, where they changed
  std::string to;
};

using Digest = std::array<uint8_t, 32>;

struct AuditRecord {
  uint64_t sequence = 0;
  Index index;
  Nanoseconds time;
  std::string actor;
  std::string verb;  // "region.assign"
  Subject subject = Subject::kRegion;
  uint64_t id = 0;
  std::string outcome;  // "accepted", "done", "failed: ..."
  /// Every change of the state that came with it, in the form of docs/fabric-manager.md: played
  /// from the first record on, they give the state.
  std::string changes;
  Digest previous{};  // hash of the record before; zeros for the first
  Digest hash{};      // SHA-256 over all of the above
};

/// Where the audit begins: the last record that retention has removed. Zeros: none was.
struct AuditBase {
  uint64_t sequence = 0;
  Digest hash{};
  bool operator==(const AuditBase&) const = default;
};

/// An outcome of `audit verify`.
struct AuditVerdict {
  uint64_t removed = 0;  // by retention, before the first that is kept
  uint64_t records = 0;
  uint64_t first_bad = 0;  // sequence; 0: all are good
  std::string text;        // what is wrong with it
  Digest head{};           // hash of the last record: note it down elsewhere, to notice a cut
};

}  // namespace tidepool::fabric
