// SPDX-License-Identifier: Apache-2.0
// The statistics page, and the heat map behind it, as memory: made by the process it describes
// (StatsRegion), looked at by others (StatsView). Both own their mapping. Creation and opening
// allocate no heap; the page itself may be used from any thread.
#pragma once

#include "runtime/base/mapping.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"
#include "runtime/stats/heat_page.h"
#include "runtime/stats/stats_page.h"

namespace tidepool {

/// Where the heat map lies in the memfd.
inline constexpr uint64_t kHeatOffset = roundUp(sizeof(StatsPage), kPageSize);

/// This process' own page, in a sealed memfd that readers find by name in /proc/PID/fd.
class StatsRegion {
 public:
  /// Creates and publishes a page with pid, program name, start time and mode filled in. Where the
  /// process may make no file of that size (RLIMIT_FSIZE) it is not published: fd() is -1.
  /// `mode` is "managed" or "degraded". After fork() the child creates one of its own.
  static Result<StatsRegion> create(const char* mode);

  StatsPage& page() const { return *reinterpret_cast<StatsPage*>(mapping_.data()); }
  HeatPage& heat() const { return *reinterpret_cast<HeatPage*>(mapping_.data() + kHeatOffset); }
  /// The memfd, so that the shim can keep it away from the program's own descriptors.
  int fd() const { return fd_.get(); }

 private:
  StatsRegion(Mapping mapping, UniqueFd fd) : mapping_(std::move(mapping)), fd_(std::move(fd)) {}
  Mapping mapping_;
  UniqueFd fd_;
};

/// Another process' page, read-only. What it holds is that process' word: counts may exceed the
/// arrays and texts may lack their NUL, so read it through the accessors below.
class StatsView {
 public:
  /// Errors: kNotFound (no such process), kPermission, kUnsupported (not run by Tidepool, or by
  /// another version of it), kCorrupt (something that only looks like a page).
  static Result<StatsView> open(int pid);

  const StatsPage& page() const { return *reinterpret_cast<const StatsPage*>(mapping_.data()); }
  /// Null where another version of Tidepool has none, or one of another layout.
  const HeatPage* heat() const;
  int pid() const { return pid_; }

 private:
  StatsView(Mapping mapping, int pid) : mapping_(std::move(mapping)), pid_(pid) {}
  Mapping mapping_;
  int pid_;
};

/// Appends one line to the ring of errors; cut at 255 bytes. Callable from any thread, lock-free;
/// a reader may see a line half written, never one without an end.
[[gnu::format(printf, 2, 3)]] void addStatsError(StatsPage& page, const char* format, ...);

/// Copies entry `slot` of the ring out; always NUL-terminated.
void readStatsError(const StatsPage& page, int slot, char (&out)[256]);

/// Adds a sampler and returns its entry, or null when the table is full. Call before the
/// page's other users start: entries are never taken away.
SampleStats* addStatsSource(StatsPage& page, const char* source);

}  // namespace tidepool
