// SPDX-License-Identifier: Apache-2.0
// Heat maps: pages added up by ranges that widen as there are more of them, and the way to readers.
#include "runtime/stats/heat_page.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "runtime/stats/stats_region.h"

namespace tidepool {
namespace {

constexpr uint64_t kBase = 0x7f00'0000'0000;
constexpr uint64_t kLeast = HeatMap::kLeastWidth.value();

PageHeat page(HeatPlace place, uint8_t heat, uint64_t learned) {
  return {place, heat, Nanoseconds(learned)};
}

TEST(HeatMap, AddsUpWhatIsKnownOfARange) {
  HeatMap map;
  map.add(kBase, page(HeatPlace::kLocal, 16, 300), 1);
  map.add(kBase + kPageSize, page(HeatPlace::kDirect, 5, 200), 2);
  map.add(kBase + 3 * kPageSize, page(HeatPlace::kDirect, 3, 400), 1);
  map.add(kBase + 5 * kPageSize, page(HeatPlace::kZero, 0, 0), 4);
  ASSERT_EQ(map.ranges().size(), 1u);
  const HeatRange& range = map.ranges()[0];
  EXPECT_EQ(range.start, kBase);
  EXPECT_EQ(range.pages(), 8u);
  EXPECT_EQ(range.places, (std::array<uint32_t, kHeatPlaces>{1, 3, 0, 0, 4, 0}));
  EXPECT_EQ(range.known, 4u);
  EXPECT_EQ(range.hot, 3u);
  EXPECT_EQ(range.hot_far, 2u);
  EXPECT_EQ(range.heat, 29u);
  EXPECT_EQ(range.oldest, 200u);
  EXPECT_EQ(range.newest, 400u);
}

TEST(HeatMap, ARunIsDividedAmongItsRanges) {
  HeatMap map;
  map.add(kBase + kLeast - kPageSize, page(HeatPlace::kLocal, 1, 1), 18);
  ASSERT_EQ(map.ranges().size(), 3u);
  EXPECT_EQ(map.ranges()[0].pages(), 1u);
  EXPECT_EQ(map.ranges()[1].pages(), 16u);
  EXPECT_EQ(map.ranges()[2].pages(), 1u);
  EXPECT_EQ(map.ranges()[2].start, kBase + 2 * kLeast);
}

// However much there is, and however far apart it lies: each page is counted once, in a range that
// is aligned and as wide as all others.
TEST(HeatMap, RangesWidenSoThatTheySuffice) {
  for (const uint64_t apart : {kLeast, 3 * kLeast, uint64_t{kGranuleSize}, 64 * kGiB}) {
    HeatMap map;
    constexpr uint64_t kPages = 5000;
    for (uint64_t i = 0; i < kPages; ++i) {
      map.add(kBase + i * apart, page(HeatPlace::kFetch, i % 17, 1000 + i), 1);
    }
    ASSERT_LE(map.ranges().size(), kMaxHeatRanges);
    EXPECT_GT(map.ranges().size(), kMaxHeatRanges / 4);
    HeatRange sum;
    for (const HeatRange& range : map.ranges()) {
      EXPECT_EQ(range.start % map.width().value(), 0u);
      EXPECT_TRUE(sum.pages() == 0 || range.start > sum.start);
      sum.start = range.start;
      sum.add(range);
    }
    EXPECT_EQ(sum.pages(), kPages);
    EXPECT_EQ(sum.oldest, 1000u);
    EXPECT_EQ(sum.newest, 1000 + kPages - 1);
  }
}

TEST(HeatMap, FitsOneRangeIfItMust) {
  HeatMap map;
  map.add(0, page(HeatPlace::kLocal, 0, 0), 1);
  map.add(~uint64_t{0} - kPageSize + 1, page(HeatPlace::kLocal, 0, 0), 1);
  map.fit(0);
  ASSERT_EQ(map.ranges().size(), 1u);
  EXPECT_EQ(map.ranges()[0].pages(), 2u);
}

TEST(HeatPage, IsEmptyUntilAMapIsWritten) {
  const auto region = StatsRegion::create("managed");
  const auto view = StatsView::open(getpid());
  ASSERT_TRUE(region && view);
  ASSERT_NE(view->heat(), nullptr);
  HeatMap read;
  EXPECT_FALSE(view->heat()->read(read));
  HeatMap map;
  map.add(kBase, page(HeatPlace::kLocal, 7, 5), 3);
  map.begun = Nanoseconds(10);
  map.ended = Nanoseconds(20);
  map.cpu = Nanoseconds(30);
  region->heat().write(map);
  ASSERT_TRUE(view->heat()->read(read));
  ASSERT_EQ(read.ranges().size(), 1u);
  EXPECT_EQ(read.ranges()[0].heat, 21u);
  EXPECT_EQ(read.width(), HeatMap::kLeastWidth);
  EXPECT_EQ(read.begun, Nanoseconds(10));
  EXPECT_EQ(read.ended, Nanoseconds(20));
  EXPECT_EQ(read.cpu, Nanoseconds(30));
}

TEST(HeatPage, AnImpossibleOneIsNotBelieved) {
  const auto region = StatsRegion::create("managed");
  ASSERT_TRUE(region);
  HeatPage& heat = region->heat();
  HeatMap read;
  heat.write(HeatMap());
  heat.count = ~uint64_t{0};
  ASSERT_TRUE(heat.read(read));
  EXPECT_EQ(read.ranges().size(), kMaxHeatRanges);
  read.fit(1);
  for (const uint64_t width : {uint64_t{0}, uint64_t{1}, 3 * kLeast}) {
    heat.width = width;
    EXPECT_FALSE(heat.read(read)) << width;
  }
  heat.width = kLeast;
  heat.version.fetch_add(1);  // its writer died, or stands still
  EXPECT_FALSE(heat.read(read));
  heat.magic = kHeatMagic + 1;
  const auto view = StatsView::open(getpid());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->heat(), nullptr);
}

// All pages of a map have the same heat, and another one in the next map.
TEST(HeatPage, AMapIsReadAsItWasWrittenOrNotAtAll) {
  const auto page_memory = std::make_unique<HeatPage>();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint8_t heat = 0; !done; heat = (heat + 1) % (kMostHeat + 1)) {
      HeatMap map;
      map.add(kBase, page(HeatPlace::kLocal, heat, 1 + heat), 50 * kLeast / kPageSize);
      map.ended = Nanoseconds(heat);
      page_memory->write(map);
    }
  });
  HeatMap read;
  for (int whole = 0; whole < 200;) {
    if (!page_memory->read(read)) continue;
    ++whole;
    ASSERT_EQ(read.ranges().size(), 50u);
    for (const HeatRange& range : read.ranges()) {
      ASSERT_EQ(range.heat, range.known * read.ended.value());
      ASSERT_EQ(range.newest, 1 + read.ended.value());
    }
  }
  done = true;
  writer.join();
}

}  // namespace
}  // namespace tidepool
