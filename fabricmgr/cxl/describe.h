// SPDX-License-Identifier: Apache-2.0
// How CXL memory is shown: as JSON with raw bytes and stable keys, or as a table for people. Pure,
// but for the blocks of system RAM, which are read now. Thread-safe.
#pragma once

#include <string>

#include "fabricmgr/cxl/health.h"
#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/trace.h"

namespace tidepool::cxl {

/// One word for how far a device is: "free", "half-made", "region" (no driver has its memory),
/// "device", "system-ram", "offline" (system RAM that is drained), "sanitizing", "foreign" (regions
/// that Tidepool did not make), "not-ready".
std::string stateOf(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev);

/// {"memdevs": [...], "windows": [...], "regions": [...]}.
std::string inventoryJson(const Sysfs& sysfs, const Inventory& inventory);
/// One of its memdevs.
std::string memdevJson(const Sysfs& sysfs, const Inventory& inventory, const Memdev& memdev);
/// {"memdev", "health": {...} or null, "health_trouble", "poison": [...] or null,
/// "poison_trouble"}.
std::string healthJson(const Memdev& memdev, const Result<Health>& health,
                       const Result<std::vector<Poison>>& poison);
std::string healthText(const Memdev& memdev, const Result<Health>& health,
                       const Result<std::vector<Poison>>& poison);
/// {"event", "region", "fields": {...}}.
std::string eventJson(const TraceEvent& event, const std::string& region);
std::string inventoryTable(const Sysfs& sysfs, const Inventory& inventory);

}  // namespace tidepool::cxl
