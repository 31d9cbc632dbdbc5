// SPDX-License-Identifier: Apache-2.0
// What a Runtime is made of, in the order of dependency: members are destroyed in reverse. For
// runtime.cc and runtime_calls.cc alone.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/pmu_feed.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/core/staging.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/migrate/evict/advice.h"
#include "runtime/migrate/evict/evictor.h"
#include "runtime/migrate/fault/fault_service.h"
#include "runtime/migrate/migrator.h"
#include "runtime/migrate/process/anchors.h"
#include "runtime/migrate/process/fork_guard.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/runtime.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {

struct Runtime::Impl final : ChildServices {
  std::optional<StatsRegion> stats;
  // Outlives the tiers: the agent gives their regions to others when the connection ends.
  std::unique_ptr<FabricMemory> fabric;
  std::unique_ptr<AgentClient> agent;  // from when it has said hello until `fabric` has it
  Bytes most_of_fabric;
  Core core;
  std::unique_ptr<SharedPolicy> policy;
  std::unique_ptr<Staging> staging;
  std::unique_ptr<GranuleMover> mover;
  std::unique_ptr<DirectLease> lease;  // null without memory of the fabric
  std::unique_ptr<Evacuator> evacuator;
  std::unique_ptr<RangeOps> ranges;
  std::unique_ptr<Anchors> anchors;
  std::unique_ptr<Advice> advice;
  std::unique_ptr<ForkGuard> fork_guard;
  std::unique_ptr<Waker> waker;
  std::unique_ptr<FaultService> faults;
  std::unique_ptr<Migrator> migrator;

  /// By their places in the options; null for the fabric. They stay for good.
  std::array<Tier*, Options::kMaxFar> far{};
  Status openTier(const FarSpec& spec, Tier*& opened);
  Status connectFabric(Bytes most);
  void openPool();
  Status build(std::unique_ptr<FaultPort> port, const Options& options);
  void openPmu();
  Status openStats();
  Status buildPolicy();
  Status buildServices();
  Status startServices();
  void stopServices();
  Status startInChild() override;
  void endThreads() override;
  Status startThreads() override;
  void withdrawUnforked() override { ranges->withdrawUnforked(); }
  Status renewInChild();
  void describeTiers();
};

}  // namespace tidepool
