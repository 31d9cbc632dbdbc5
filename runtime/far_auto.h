// SPDX-License-Identifier: Apache-2.0
// What `--far auto` stands for on this machine. Thread-safe; changes nothing.
#pragma once

#include "runtime/base/result.h"
#include "runtime/options.h"

namespace tidepool {

/// The best NUMA node that has memory and no processors, as CXL memory in system-RAM mode is (see
/// NumaNodes for the rank); else the first device-DAX node that can be opened. Errors: kNotFound
/// when there is neither.
Result<FarSpec> findFar();

}  // namespace tidepool
