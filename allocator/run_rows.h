// SPDX-License-Identifier: Apache-2.0
// Far tiers of a run, for tables of rows: RowStore and RowChannel over the preload library's table
// of functions. Thread-safe but for channels, which one thread uses at a time.
#pragma once

#include <memory>

#include "allocator/run_api.h"
#include "runtime/tier/tier.h"

namespace tidepool {

/// The far tier `far_tier` (from 0, in the order of the options). `api` is for the life of the
/// process. Errors: as Runtime::rowStore().
Result<std::unique_ptr<RowStore>> openRunRows(const TidepoolRunApi& api, size_t far_tier);

}  // namespace tidepool
