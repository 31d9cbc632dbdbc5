// SPDX-License-Identifier: Apache-2.0
// Tells the victim chooser of local pages that the PMU saw in use: loads too, which write tracking
// cannot see. Runs on the migrator's thread; allocates at create() only.
#pragma once

#include <memory>

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/sample/pmu_sampler.h"

namespace tidepool {

class PmuFeed {
 public:
  /// On a thread of the program, before the service threads are started. Null where the machine has
  /// no such PMU, or its use is not permitted: other samplers do without it.
  static std::unique_ptr<PmuFeed> create(Core& core, SharedPolicy& policy, PerfPort& port,
                                         const MemoryEvent& event, int processors);

  /// Takes in what was sampled since the last call.
  void tick(Nanoseconds now);

 private:
  PmuFeed(Core& core, SharedPolicy& policy, std::unique_ptr<PmuSampler> sampler,
          SampleStats* source)
      : core_(core), policy_(policy), sampler_(std::move(sampler)), source_(source) {}
  void take(std::span<const PmuSample> samples, Nanoseconds now);

  Core& core_;
  SharedPolicy& policy_;
  std::unique_ptr<PmuSampler> sampler_;
  SampleStats* source_;
};

}  // namespace tidepool
