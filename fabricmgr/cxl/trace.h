// SPDX-License-Identifier: Apache-2.0
// What the kernel's CXL drivers report as trace events: the poison list of a device, and events of
// devices as they come. Each reader has a trace instance of its own, so readers do not disturb each
// other or anybody else's tracing; it is removed with the reader. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::cxl {

/// One trace event: "cxl_poison" and its fields as the kernel prints them.
struct TraceEvent {
  std::string name;
  std::map<std::string, std::string> fields;
  std::string field(const std::string& name) const;
};

/// Of one line of a trace; nothing of a line that has no event of CXL.
bool parseTraceLine(const std::string& line, TraceEvent* event);

/// The region that a device's physical address (in the event's field dpa) belongs to: the one that
/// the kernel names, else that of the decoder that covers it; empty if none does.
std::string regionOfEvent(const Inventory& inventory, const TraceEvent& event);

class TraceReader {
 public:
  /// Of one event ("cxl_poison") or all ("") of CXL. Errors: kUnsupported (the kernel has no such
  /// events, or tracefs is not mounted), kPermission.
  static Result<std::unique_ptr<TraceReader>> open(const Sysfs& sysfs, const std::string& event);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  /// What has come so far is shown and done with.
  void drain(const std::function<void(const TraceEvent&)>& see);

 private:
  TraceReader(const Sysfs& sysfs, std::string folder) : sysfs_(sysfs), folder_(std::move(folder)) {}
  const Sysfs& sysfs_;
  const std::string folder_;
};

}  // namespace tidepool::cxl
