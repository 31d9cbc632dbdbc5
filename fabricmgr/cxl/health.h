// SPDX-License-Identifier: Apache-2.0
// How well a memory device is, by its own word: its health information (libcxl, by the device's
// mailbox) and its list of poisoned addresses (the kernel's trace events), each mapped to the
// region whose bytes are there. Nothing is kept; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/cxl/inventory.h"
#include "fabricmgr/cxl/sysfs.h"
#include "runtime/base/result.h"

namespace tidepool::cxl {

/// CXL 3.1, 8.2.10.9.3.1 (Get Health Info).
struct Health {
  bool maintenance_needed = false;
  bool performance_degraded = false;
  bool replacement_needed = false;
  bool media_normal = false;
  std::optional<unsigned> life_used_percent;
  std::optional<int> temperature_celsius;
  unsigned corrected_volatile_errors = 0;
};

/// Errors: kUnsupported (the device has no such command), kNotFound, kIo.
Result<Health> readHealth(const std::string& memdev);

struct Poison {
  uint64_t address = 0;  // in the device
  uint64_t length = 0;   // bytes
  std::string source;    // Internal, External, Injected, ...
  std::string region;    // empty: in none
};

/// Asks the device for its list. Errors: kUnsupported, kPermission, kIo.
Result<std::vector<Poison>> readPoison(const Sysfs& sysfs, const Inventory& inventory,
                                       const Memdev& memdev);

}  // namespace tidepool::cxl
