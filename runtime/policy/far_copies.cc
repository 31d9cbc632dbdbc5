// SPDX-License-Identifier: Apache-2.0
// A saturating balance of copies that paid and copies that did not.
#include "runtime/policy/far_copies.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {

int8_t& FarCopies::balanceOf(GranuleIndex granule, Arrival arrival) {
  if (arrival == Arrival::kScan) return scans_;
  TP_CHECK_OP(granule.value(), <, balance_.size());
  return balance_[granule.value()];
}

bool FarCopies::worthKeeping(GranuleIndex granule, Arrival arrival) {
  return balanceOf(granule, arrival) > 0 || ++asked_ % kExploreEvery == 0;
}

void FarCopies::learn(GranuleIndex granule, Arrival arrival, int change) {
  int8_t& balance = balanceOf(granule, arrival);
  balance = static_cast<int8_t>(std::clamp(balance + change, -kMost, kMost));
}

}  // namespace tidepool
