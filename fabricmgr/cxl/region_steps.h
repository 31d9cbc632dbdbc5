// SPDX-License-Identifier: Apache-2.0
// The steps below Host: a region made and unmade, a DAX device moved between drivers. The caller
// holds the lock. Errors as of Host.
#pragma once

#include <string>

#include "fabricmgr/cxl/bus.h"
#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"

namespace tidepool::cxl {

/// The device's one region; nullptr if it has none. Errors: kConflict if it has several, or one
/// that other devices are part of.
Result<const Region*> onlyRegionOf(const Inventory& inventory, const Memdev& memdev);

/// A new region of all the device's volatile memory, committed and bound. Leaves nothing half made
/// if it fails, unless it is killed.
Status makeRegion(const Bus& bus, const Memdev& memdev, const Inventory& inventory);
/// Removes regions that were begun and never committed: those with a part on the device, and those
/// of its windows that have no part at all. Returns whether there were any.
Result<bool> removeHalfMade(const Bus& bus, const Inventory& inventory, const Memdev& memdev);
/// Whatever state it is in. Its DAX device must have no driver.
Status removeRegion(const Bus& bus, const Region& region);
/// Gives back what endpoint decoders have reserved of the device and no region uses.
Status freeReserved(const Bus& bus, const Memdev& memdev);

/// Errors: kRefused if it is system RAM that is online, or a process has it open.
Status leaveDriver(const Sysfs& sysfs, const Bus& bus, const DaxDevice& dax);
Status enterDriver(const Sysfs& sysfs, const Bus& bus, const DaxDevice& dax, Mode mode);

}  // namespace tidepool::cxl
