// SPDX-License-Identifier: Apache-2.0
// The steps below Host: a region made and unmade attribute by attribute, a DAX device moved between
// drivers. The caller holds the lock. Errors as of Host.
#pragma once

#include <string>

#include "fabricmgr/cxl/host.h"
#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"

namespace tidepool::cxl {

/// The device's one region; nullptr if it has none. Errors: kConflict if it has several, or one
/// that other devices are part of.
Result<const Region*> onlyRegionOf(const Inventory& inventory, const Memdev& memdev);

/// A new region of all the device's volatile memory, committed and bound. Leaves nothing half made
/// if it fails, unless it is killed.
Status makeRegion(const Sysfs& sysfs, const Memdev& memdev, const Inventory& inventory);
/// The driver takes a committed region, which makes its DAX device.
Status bindRegion(const Sysfs& sysfs, const std::string& region);
/// Removes regions that were begun and never committed: those with a part on the device, and those
/// of its windows that have no part at all. Returns whether there were any.
Result<bool> removeHalfMade(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev);
/// Whatever state it is in. Its DAX device must have no driver.
Status removeRegion(const Sysfs& sysfs, const Region& region);
/// Gives back what endpoint decoders have reserved of the device and no region uses.
Status freeReserved(const Sysfs& sysfs, const Memdev& memdev);

/// Errors: kRefused if it is system RAM that is online, or a process has it open.
Status leaveDriver(const Sysfs& sysfs, const DaxDevice& dax);
Status enterDriver(const Sysfs& sysfs, const DaxDevice& dax, Mode mode);
const char* driverOf(Mode mode);

}  // namespace tidepool::cxl
