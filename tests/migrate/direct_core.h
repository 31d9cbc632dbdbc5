// SPDX-License-Identifier: Apache-2.0
// What the runtime has for one direct tier, without its threads: tests call its parts themselves.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/stats/stats_region.h"
#include "runtime/tier/direct_file_tier.h"

namespace tidepool {

class DirectCoreTest : public testing::Test {
 protected:
  /// Over this tier, with room for so many local pages. The space's size is 1 GiB.
  void build(std::unique_ptr<DirectTier> tier, PageCount local) {
    auto region = StatsRegion::create("managed");
    ASSERT_TRUE(region);
    stats_.emplace(std::move(*region));
    core_.stats = &stats_->page();
    auto port = openKernelFaultPort(MovePolicy::kIfSupported);
    auto barrier = openKernelWriteBarrier();
    auto space = ManagedSpace::create(Bytes(kGiB));
    ASSERT_TRUE(port && barrier && space);
    core_.port = std::move(*port);
    core_.barrier = std::move(*barrier);
    core_.space = std::move(*space);
    core_.tiers.add(std::move(tier));
    ASSERT_TRUE(core_.need_memory.open() && core_.freed_memory.open());
    VictimConfig config;
    config.capacity = local;
    core_.budget.setLimit(local);
    auto policy = SharedPolicy::create(config, PageCount(core_.space->pageEnd().value()));
    auto mover = GranuleMover::create(core_);
    ASSERT_TRUE(policy && mover);
    policy_ = std::move(*policy);
    mover_ = std::move(*mover);
    ranges_ = std::make_unique<RangeOps>(core_, *policy_, *mover_);
  }

  /// The first address of so many granules, of which nothing is anywhere yet; 0 after a failure.
  uintptr_t allocate(uint64_t granules) {
    const auto address = ranges_->allocate(Bytes(granules * kGranuleSize), Bytes(kGranuleSize));
    EXPECT_TRUE(address);
    return address.value_or(0);
  }

  bool placeFar(GranuleIndex index) {
    const GranuleLock granule(*core_.space, index);
    return mover_->demoter.placeFar(granule, granule.first());
  }
  void change(PageIndex page, PageWord from, PageWord to) {
    const GranuleLock granule(*core_.space, granuleOf(page));
    ASSERT_TRUE(core_.space->change(granule, page, from, to));
  }
  /// Pages of one granule.
  void promote(PageIndex first, uint64_t count) {
    const Promoter::Run run{first, count};
    const GranuleLock granule(*core_.space, granuleOf(first));
    ASSERT_EQ(mover_->promoter.promote(granule, {&run, 1}), 1u);
  }

  std::optional<StatsRegion> stats_;
  Core core_;
  std::unique_ptr<SharedPolicy> policy_;
  std::unique_ptr<GranuleMover> mover_;
  std::unique_ptr<RangeOps> ranges_;
};

}  // namespace tidepool
