// SPDX-License-Identifier: Apache-2.0
// Local pages on the node of a numa: tier. On a machine with one node all local pages are strays,
// and are moved to where they are: what is asked, counted and left alone can be seen all the same.
// Pages that really move are seen in the virtual machines (tests/vm/tests/numa_strays.py).
#include "runtime/migrate/strays.h"

#include <gtest/gtest.h>

#include "runtime/migrate/granule_mover.h"
#include "runtime/migrate/range_ops.h"
#include "runtime/migrate/shared_policy.h"
#include "runtime/os/numa.h"
#include "runtime/stats/stats_region.h"
#include "runtime/tier/direct_file_tier.h"
#include "runtime/tier/numa_tier.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kSecond(1'000'000'000);

class StraysTest : public testing::Test {
 protected:
  void build(std::unique_ptr<DirectTier> tier) {
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
    config.capacity = PageCount(4096);
    auto policy = SharedPolicy::create(config, PageCount(core_.space->pageEnd().value()));
    auto mover = GranuleMover::create(core_);
    ASSERT_TRUE(policy && mover);
    policy_ = std::move(*policy);
    mover_ = std::move(*mover);
    ranges_ = std::make_unique<RangeOps>(core_, *policy_, *mover_);
    const auto address = ranges_->allocate(Bytes(2 * kGranuleSize), Bytes(kGranuleSize));
    ASSERT_TRUE(address);
    bytes_ = reinterpret_cast<volatile uint8_t*>(*address);
    first_ = core_.space->pageAt(*address);
    for (const uint64_t granule : {0, 1}) placeAndFill(granule);
  }
  void buildOnNode() {
    os::NumaNodes nodes = os::readNumaNodes();
    nodes.nodes[1] = {1, false, Bytes(kGiB), Bytes(), 20, {}};
    nodes.count = 2;
    auto tier = NumaTier::open(nodes.nodes[0].number, nodes);
    ASSERT_TRUE(tier) << tier.error().text();
    build(std::move(*tier));
  }
  void placeAndFill(uint64_t granule) {
    const PageIndex first = first_ + granule * kPagesPerGranule;
    MutexLock lock(core_.space->lockOf(granuleOf(first)));
    ASSERT_TRUE(mover_->placeFar(first));
    for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
      bytes_[(granule * kPagesPerGranule + i) * kPageSize] = static_cast<uint8_t>(i * 5 + granule);
    }
  }
  void promote(uint64_t page, uint64_t count) {
    const GranuleMover::Run run{first_ + page, count};
    MutexLock lock(core_.space->lockOf(granuleOf(run.first)));
    ASSERT_EQ(mover_->promote({&run, 1}), 1u);
  }
  void expectContents() {
    for (uint64_t i = 0; i < 2 * kPagesPerGranule; ++i) {
      const auto wanted = static_cast<uint8_t>(i % kPagesPerGranule * 5 + i / kPagesPerGranule);
      ASSERT_EQ(bytes_[i * kPageSize], wanted) << i;
    }
  }

  std::optional<StatsRegion> stats_;
  Core core_;
  std::unique_ptr<SharedPolicy> policy_;
  std::unique_ptr<GranuleMover> mover_;
  std::unique_ptr<RangeOps> ranges_;
  volatile uint8_t* bytes_ = nullptr;
  PageIndex first_;
};

TEST_F(StraysTest, LocalPagesOnTheFarNodeAreMovedBackOnceASecond) {
  buildOnNode();
  promote(3, 5);
  promote(kPagesPerGranule + 100, 40);
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 45u);
  EXPECT_EQ(core_.stats->returned_pages, 45u);
  strays.tick(kSecond + kSecond / 2);
  EXPECT_EQ(core_.stats->strayed_pages, 45u);
  strays.tick(kSecond + kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 90u);
  expectContents();
}

TEST_F(StraysTest, PagesOfTheTierItselfStay) {
  buildOnNode();
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 0u);
  expectContents();
}

TEST_F(StraysTest, WithoutANodeNothingIsAsked) {
  auto tier = DirectFileTier::createEmulated(Bytes(8 * kMiB));
  ASSERT_TRUE(tier);
  build(std::move(*tier));
  promote(0, 512);
  Strays strays(core_);
  strays.tick(kSecond);
  EXPECT_EQ(core_.stats->strayed_pages, 0u);
}

}  // namespace
}  // namespace tidepool
