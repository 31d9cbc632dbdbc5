// SPDX-License-Identifier: Apache-2.0
// Makes the process's heat map, over and over: looks at the words of all pages, some granules at
// every tick, at what the balancer and the chooser of victims remember of them, and writes the
// ranges to the statistics. Runs on the migrator's thread; touches no managed memory, allocates
// nothing, and holds the policy's lock for a granule at a time.
#pragma once

#include <memory>

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/direct/balancer.h"
#include "runtime/stats/heat_page.h"

namespace tidepool {

class HeatSweeper {
 public:
  /// All must outlive it.
  HeatSweeper(Core& core, SharedPolicy& policy, HeatPage& page)
      : core_(core), policy_(policy), page_(page), map_(std::make_unique<HeatMap>()) {}

  /// At every tick of the migrator. Without direct tiers `balancer` is null.
  void tick(Nanoseconds now, const Balancer* balancer);

 private:
  void look(GranuleIndex granule, Nanoseconds now, const Balancer* balancer);
  PageHeat heatOf(PageIndex page, PageWord word, Nanoseconds now, const Balancer* balancer)
      TP_REQUIRES(policy_.mutex());
  HeatPlace placeOf(PageWord word) const;

  Core& core_;
  SharedPolicy& policy_;
  HeatPage& page_;
  std::unique_ptr<HeatMap> map_;
  GranuleIndex hand_;
  Nanoseconds next_;  // when the next pass begins
  bool sweeping_ = false;
};

}  // namespace tidepool
