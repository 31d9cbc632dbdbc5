// SPDX-License-Identifier: Apache-2.0
// Charging a ledger within a budget of local memory. Lock-free, thread-safe; allocates nothing.
#pragma once

#include "runtime/base/ledger.h"
#include "runtime/base/result.h"

namespace tidepool {

/// All or nothing, up to the budget but for what managed pages cannot do without. `budget` 0: the
/// machine's memory. Errors: kNoSpace.
Status chargeLedger(Ledger& ledger, Bytes size, Bytes budget);

}  // namespace tidepool
