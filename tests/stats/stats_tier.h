// SPDX-License-Identifier: Apache-2.0
// A tier in a statistics page, as describeFarTiers() writes it.
#pragma once

#include <cstdio>

#include "runtime/stats/stats_page.h"

namespace tidepool {

/// Returns its entry.
inline TierStats& addStatsTier(StatsPage& page, const char* name, const char* kind) {
  TierStats& tier = page.tiers[page.tier_count++];
  snprintf(tier.name, sizeof tier.name, "%s", name);
  snprintf(tier.kind, sizeof tier.kind, "%s", kind);
  return tier;
}

}  // namespace tidepool
