// SPDX-License-Identifier: Apache-2.0
// How much may be charged to a budget. Lock-free, thread-safe; allocates nothing.
#include "runtime/local_charge.h"

#include <algorithm>

#include "runtime/options.h"

namespace tidepool {
namespace {

// Pages without which the managed space cannot be used: see the migrator's least limit.
constexpr Bytes kLeft(256 * kKiB);

}  // namespace

Status chargeLedger(Ledger& ledger, Bytes size, Bytes budget) {
  const Bytes whole = budget.value() != 0 ? budget : localMemory();
  const Bytes limit = whole - std::min(whole, kLeft);
  if (ledger.tryCharge(size, limit)) return {};
  return fail(ErrorCode::kNoSpace,
              "%llu bytes of local memory do not fit the budget of %llu, of which %llu are taken: "
              "raise dram, or free some",
              static_cast<unsigned long long>(size.value()),
              static_cast<unsigned long long>(whole.value()),
              static_cast<unsigned long long>(ledger.held().value()));
}

}  // namespace tidepool
