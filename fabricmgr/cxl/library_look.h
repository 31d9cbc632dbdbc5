// SPDX-License-Identifier: Apache-2.0
// The inventory as libcxl shows it. Nothing is kept; thread-safe.
#pragma once

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"

namespace tidepool::cxl {

/// As Bus::look(). `sysfs` is read for what libcxl does not show.
Result<Inventory> lookByLibrary(const Sysfs& sysfs);

}  // namespace tidepool::cxl
