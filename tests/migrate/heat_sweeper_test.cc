// SPDX-License-Identifier: Apache-2.0
// The pass that makes a heat map: what it says of pages in each state, and how much of it is done
// at a tick.
#include "runtime/migrate/heat_sweeper.h"

#include "tests/migrate/migrator_fixture.h"

namespace tidepool {
namespace {

class HeatSweeperTest : public FakeCoreTest {
 protected:
  void SetUp() override {
    FakeCoreTest::SetUp();
    clock_.advance(Nanoseconds(5'000'000'000));
  }
  /// One whole pass, begun in another second than the one before.
  HeatMap pass() {
    clock_.advance(Nanoseconds(1'000'000'000));
    HeatMap map;
    const uint64_t before = stats_->heat().version;
    while (stats_->heat().version == before) tick();
    EXPECT_TRUE(stats_->heat().read(map));
    return map;
  }
  void tick() {
    sweeper_->tick(clock_.now(), nullptr);
    clock_.advance(kTick);
  }
  void makeSweeper() { sweeper_ = std::make_unique<HeatSweeper>(core_, *policy_, stats_->heat()); }
  /// Of the range in which the page is.
  HeatRange rangeOf(const HeatMap& map, PageIndex page) {
    for (const HeatRange& range : map.ranges()) {
      if (addressOf(page) - range.start < map.width().value()) return range;
    }
    return {};
  }

  std::unique_ptr<HeatSweeper> sweeper_;
};

constexpr uint64_t at(HeatPlace place) { return static_cast<uint64_t>(place); }

TEST_F(HeatSweeperTest, SaysWherePagesLie) {
  addTier();
  makeSweeper();
  const PageIndex first = allocate();
  makeLocal(first, 3);
  makeFar(first + 3, 5);
  sendOut(first + 8, PageWord(PageState::kZero, 0, 0, 0));
  change(first + 9, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
  change(first + 9, PageWord(PageState::kLocal, 0, 0, 0), PageWord(PageState::kEvicting, 0, 0, 0));
  const HeatMap map = pass();
  ASSERT_EQ(map.ranges().size(), 1u);
  EXPECT_EQ(map.ranges()[0].start, addressOf(first));
  EXPECT_EQ(map.ranges()[0].places, (std::array<uint32_t, kHeatPlaces>{4, 0, 5, 0, 1, 0}));
  EXPECT_EQ(map.ranges()[0].known, 7u) << "what is absent was not touched";
  EXPECT_EQ(map.ranges()[0].heat, 0u);
  EXPECT_GT(map.cpu, Nanoseconds());
  discard(first, 10);
  EXPECT_EQ(pass().ranges().size(), 0u);
}

TEST_F(HeatSweeperTest, HeatIsTheChoosersScoreOnceItHasLooked) {
  addTier();
  makeSweeper();
  const PageIndex first = allocate(2);
  makeLocal(first, 16);
  makeLocal(first + kPagesPerGranule, 16);
  {
    MutexLock lock(policy_->mutex());
    for (uint64_t i = 0; i < 4; ++i) policy_->chooser().onSample(first + i, 9);
  }
  EXPECT_EQ(rangeOf(pass(), first).known, 0u);
  const Nanoseconds looked = clock_.now();
  policy_->looks().note(granuleOf(first), looked);
  const HeatMap map = pass();
  const HeatRange hot = rangeOf(map, first), other = rangeOf(map, first + kPagesPerGranule);
  EXPECT_EQ(hot.known, 16u);
  EXPECT_EQ(hot.hot, 4u);
  EXPECT_EQ(hot.heat, 4 * 9 + 16u);
  EXPECT_EQ(Nanoseconds(hot.oldest), looked);
  EXPECT_EQ(other.known, 0u);
}

// Of what is far the score stays; it says something as long as little else has left since.
TEST_F(HeatSweeperTest, FarPagesCoolDownAsOthersLeave) {
  addTier();
  VictimConfig config;
  config.capacity = PageCount(4096);
  config.sampling_cpu = 0;
  config.tuning.least_yield = 0;
  usePolicy(config);
  makeSweeper();
  const PageIndex first = allocate(4);
  const auto evict = [&](PageIndex page) {
    MutexLock lock(policy_->mutex());
    policy_->chooser().onGivenUp(page);
    ASSERT_EQ(policy_->chooser().classifyBehind(page), Verdict::kEvict);
  };
  makeFar(first, 1);
  evict(first);
  {
    MutexLock lock(policy_->mutex());
    policy_->chooser().onSample(first, 12);
  }
  EXPECT_EQ(rangeOf(pass(), first).heat, 12u);
  for (uint64_t i = 0; i < 1024; ++i) evict(first + kPagesPerGranule + i);
  const HeatRange later = rangeOf(pass(), first);
  EXPECT_EQ(later.heat, 0u);
  EXPECT_EQ(later.known, 1u);
}

TEST_F(HeatSweeperTest, LooksAtAFewGranulesATickAndBeginsOnceASecond) {
  makeSweeper();
  const PageIndex first = allocate(20);
  for (uint64_t granule = 0; granule < 20; ++granule) {
    makeLocal(first + granule * kPagesPerGranule, 1);
  }
  for (int ticks = 1; ticks <= 2; ++ticks) tick();
  EXPECT_EQ(stats_->heat().version, 0u);
  tick();
  EXPECT_EQ(stats_->heat().version, 2u);
  HeatMap map;
  ASSERT_TRUE(stats_->heat().read(map));
  EXPECT_EQ(map.ranges().size(), 20u);
  EXPECT_EQ(map.ended - map.begun, kTick * 2);
  while (stats_->heat().version == 2u) tick();
  HeatMap next;
  ASSERT_TRUE(stats_->heat().read(next));
  EXPECT_GE(next.begun - map.begun, Nanoseconds(1'000'000'000));
}

TEST_F(MigratorTest, MakesAHeatMapAtItsTicks) {
  clock_.advance(kTick);
  localPages(10);
  makeMigrator();
  migrator_->setHeat(std::make_unique<HeatSweeper>(core_, *policy_, stats_->heat()));
  turn();
  HeatMap map;
  ASSERT_TRUE(stats_->heat().read(map));
  EXPECT_EQ(map.ranges().size(), 1u);
}

}  // namespace
}  // namespace tidepool
