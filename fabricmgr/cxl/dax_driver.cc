// SPDX-License-Identifier: Apache-2.0
// A DAX device and its drivers: kmem makes it the kernel's memory, device_dax lets programs map it.
#include <algorithm>

#include "fabricmgr/cxl/region_steps.h"

namespace tidepool::cxl {
namespace {

constexpr const char* kDrivers = "/sys/bus/dax/drivers/";

std::string driverNow(const Sysfs& sysfs, const DaxDevice& dax) {
  return sysfs.targetName(kDaxDevices + dax.name + "/driver");
}

Status checkUnused(const Sysfs& sysfs, const DaxDevice& dax) {
  const auto blocks = blocksOf(sysfs, dax);
  if (!blocks) return tl::unexpected(blocks.error());
  if (anyOnline(*blocks)) {
    return fail(ErrorCode::kRefused,
                "%s is system RAM and online: drain it first (fabricmgr cxl drain)",
                dax.name.c_str());
  }
  const auto holders = holdersOf(sysfs, dax);
  if (!holders) return tl::unexpected(holders.error());
  if (holders->empty()) return {};
  return fail(ErrorCode::kRefused, "/dev/%s is used by %.120s", dax.name.c_str(), holders->c_str());
}

/// With system RAM gone, no block of it is left. The kernel does not fail an unbinding that could
/// not remove memory: it merely keeps it, until the machine starts anew.
Status checkLeft(const Sysfs& sysfs, const DaxDevice& dax) {
  const std::string driver = driverNow(sysfs, dax);
  if (!driver.empty()) {
    return fail(ErrorCode::kIo, "%s did not leave %s", driver.c_str(), dax.name.c_str());
  }
  const auto blocks = blocksOf(sysfs, dax);
  if (!blocks) return tl::unexpected(blocks.error());
  if (blocks->empty()) return {};
  return fail(ErrorCode::kIo, "the kernel kept memory of %s: it needs a restart of the machine",
              dax.name.c_str());
}

}  // namespace

const char* driverOf(Mode mode) { return mode == Mode::kDevice ? "device_dax" : "kmem"; }

Status leaveDriver(const Sysfs& sysfs, const DaxDevice& dax) {
  // The name stays on the driver's list when the device goes: the next one of that name would be
  // taken by it.
  const std::string remove_id = kDrivers + std::string("device_dax/remove_id");
  const std::string driver = driverNow(sysfs, dax);
  if (!driver.empty()) {
    TP_TRY(checkUnused(sysfs, dax));
    const Status left = sysfs.write(kDrivers + driver + "/unbind", dax.name);
    if (!left && !driverNow(sysfs, dax).empty()) return left;
    TP_TRY(checkLeft(sysfs, dax));
  }
  if (sysfs.exists(remove_id)) TP_TRY(sysfs.write(remove_id, dax.name));
  return {};
}

Status enterDriver(const Sysfs& sysfs, const DaxDevice& dax, Mode mode) {
  const std::string driver = driverOf(mode);
  const std::string folder = kDrivers + driver;
  if (driverNow(sysfs, dax) == driver) return {};
  if (!sysfs.exists(folder)) {
    return fail(ErrorCode::kUnsupported, "the kernel has no driver %s: modprobe %s", driver.c_str(),
                driver.c_str());
  }
  TP_TRY(leaveDriver(sysfs, dax));
  // device_dax takes a region's memory only when told its name, and takes it then.
  Status entered;
  if (mode == Mode::kDevice) entered = sysfs.write(folder + "/new_id", dax.name);
  if (driverNow(sysfs, dax).empty()) entered = sysfs.write(folder + "/bind", dax.name);
  if (driverNow(sysfs, dax) == driver) return {};
  if (!entered) return entered;
  return fail(ErrorCode::kIo, "%s did not take %s", driver.c_str(), dax.name.c_str());
}

}  // namespace tidepool::cxl
