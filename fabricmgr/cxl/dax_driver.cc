// SPDX-License-Identifier: Apache-2.0
// A DAX device and its drivers: kmem makes it the kernel's memory, device_dax lets programs map it.
// The library moves it; that nobody uses it meanwhile is checked here, since neither the library
// nor the kernel does.
#include "fabricmgr/cxl/host.h"
#include "fabricmgr/cxl/region_steps.h"

namespace tidepool::cxl {
namespace {

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

Status leaveDriver(const Sysfs& sysfs, const Bus& bus, const DaxDevice& dax) {
  if (driverNow(sysfs, dax).empty()) return {};
  TP_TRY(checkUnused(sysfs, dax));
  const Status left = bus.disableDax(dax.name);
  if (!left && !driverNow(sysfs, dax).empty()) return left;
  return checkLeft(sysfs, dax);
}

Status enterDriver(const Sysfs& sysfs, const Bus& bus, const DaxDevice& dax, Mode mode) {
  const std::string driver = driverOf(mode);
  if (driverNow(sysfs, dax) == driver) return {};
  TP_TRY(leaveDriver(sysfs, bus, dax));
  const Status entered = bus.enableDax(dax.name, mode);
  if (driverNow(sysfs, dax) == driver) return {};
  if (!entered) return entered;
  return fail(ErrorCode::kIo, "%s did not take %s", driver.c_str(), dax.name.c_str());
}

}  // namespace tidepool::cxl
