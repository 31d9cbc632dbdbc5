// SPDX-License-Identifier: Apache-2.0
// What one device holds for whom, durable before anything is answered: the table of its grants, and
// the log of that. For devices that keep no such record themselves. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/device/grant_table.h"

namespace tidepool::fabric {

class LoggedGrants {
 public:
  /// Takes over what the log at `path` says. `holder` is the device's name in errors: "the pool".
  /// Errors: those of GrantLog::open().
  static Result<std::unique_ptr<LoggedGrants>> open(const std::string& path, const Device& device,
                                                    Leadership& leadership, Bytes capacity,
                                                    const char* holder);

  /// As GrantTable::check().
  Status check(const Grant& grant) TP_EXCLUDES(mutex_);
  /// Durable when it returns. Errors: those of GrantLog::await().
  Status record(const GrantReport& report) TP_EXCLUDES(mutex_);
  /// check(), and record() before anything else changes.
  Status checkAndRecord(const GrantReport& report) TP_EXCLUDES(mutex_);
  /// Whether the grant's extents may be overwritten: they are its region's, and it is revoked.
  /// Errors: kConflict, kRefused.
  Status mayErase(const Grant& grant) TP_EXCLUDES(mutex_);
  /// The record of a scrubbed region goes; from the disk, with the next one that is recorded.
  void forget(RegionId region) TP_EXCLUDES(mutex_);
  std::vector<GrantReport> all() TP_EXCLUDES(mutex_);
  /// As DeviceDriver::release(). Errors: those of GrantLog::await().
  Status release() TP_EXCLUDES(mutex_);

 private:
  LoggedGrants(Bytes capacity, std::unique_ptr<GrantLog> log, const char* holder)
      : holder_(holder), log_(std::move(log)), table_(capacity) {}
  /// Into the table and the log; what the log is to be awaited for.
  uint64_t note(const GrantReport& report) TP_REQUIRES(mutex_);

  const std::string holder_;
  const std::unique_ptr<GrantLog> log_;
  Mutex mutex_;
  GrantTable table_ TP_GUARDED_BY(mutex_);
};

}  // namespace tidepool::fabric
