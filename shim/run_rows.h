// SPDX-License-Identifier: Apache-2.0
// The part of the run's API (allocator/run_api.h) by which libtidepool keeps tables of rows in the
// run's far tiers. Thread-safe but for channels, which one thread uses at a time.
#pragma once

#include "allocator/run_api.h"

namespace tidepool {

/// Fills in the functions that deal with rows.
void addRowFunctions(TidepoolRunApi& api);

}  // namespace tidepool
