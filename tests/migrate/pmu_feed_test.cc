// SPDX-License-Identifier: Apache-2.0
// From PMU samples to scores: local pages of the space gain, nothing else does.
#include "runtime/migrate/core/pmu_feed.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/stats/stats_region.h"
#include "tests/sample/fake_perf.h"

namespace tidepool {
namespace {

class PmuFeedTest : public testing::Test {
 protected:
  void SetUp() override {
    auto space = ManagedSpace::create(Bytes(64 * kMiB));
    ASSERT_TRUE(space);
    core_.space = std::move(*space);
    core_.stats = &page_;
    VictimConfig config;
    config.capacity = PageCount(1000);
    auto policy = SharedPolicy::create(config, PageCount(core_.space->pageEnd().value()));
    ASSERT_TRUE(policy);
    policy_ = std::move(*policy);
  }
  void sample(uint64_t page) {
    port_.ring(0).sample(static_cast<uint32_t>(getpid()),
                         core_.space->addressOf(PageIndex(page)) + 123);
  }
  void makeLocal(uint64_t page) {
    const GranuleLock granule(*core_.space, granuleOf(PageIndex(page)));
    ASSERT_TRUE(core_.space->change(granule, PageIndex(page), PageWord(),
                                    PageWord(PageState::kLocal, 0, 0, 0)));
  }
  uint32_t score(uint64_t page) {
    MutexLock lock(policy_->mutex());
    return policy_->chooser().score(PageIndex(page));
  }

  StatsPage page_{};
  Core core_;
  std::unique_ptr<SharedPolicy> policy_;
  FakePerfPort port_;
};

TEST_F(PmuFeedTest, ScoresLocalPagesOnly) {
  const auto feed = PmuFeed::create(core_, *policy_, port_, MemoryEvent{.name = "ibs"}, 1);
  ASSERT_NE(feed, nullptr);
  makeLocal(5);
  sample(5);
  sample(6);  // not local
  port_.ring(0).sample(static_cast<uint32_t>(getpid()), 0x1000);
  port_.ring(0).sample(1, core_.space->addressOf(PageIndex(5)));
  feed->tick(Nanoseconds(1'000'000'000));
  EXPECT_EQ(score(5), 4u);
  EXPECT_EQ(score(6), 0u);
  EXPECT_STREQ(page_.sources[0].source, "ibs");
  EXPECT_EQ(page_.sources[0].count.load(), 1u);
  EXPECT_GT(page_.sources[0].cpu_nanoseconds.load(), 0u);
  EXPECT_EQ(page_.sources[0].cpu_nanoseconds.load(), page_.sampling_cpu_nanoseconds.load());
}

TEST_F(PmuFeedTest, TakesAFullRingInOneTick) {
  const auto feed = PmuFeed::create(core_, *policy_, port_, MemoryEvent{.name = "pebs"}, 2);
  ASSERT_NE(feed, nullptr);
  makeLocal(7);
  for (int i = 0; i < 150; ++i) sample(7);
  feed->tick(Nanoseconds(1'000'000'000));
  EXPECT_EQ(page_.sources[0].count.load(), 150u);
  EXPECT_EQ(score(7), VictimChooser::kMaxScore);
}

TEST_F(PmuFeedTest, IsNotThereWhereItIsNotPermitted) {
  port_.refuses = ErrorCode::kPermission;
  EXPECT_EQ(PmuFeed::create(core_, *policy_, port_, MemoryEvent{}, 2), nullptr);
  EXPECT_EQ(page_.source_count.load(), 0u);
}

}  // namespace
}  // namespace tidepool
