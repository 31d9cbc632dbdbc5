// SPDX-License-Identifier: Apache-2.0
// A tier that can only be mapped in whole granules, as device-DAX: all of a granule goes there or
// none, and comes back so; parts that are given back and taken again read as zeros, the rest keeps
// its bytes. With TIDEPOOL_TEST_DAX=/dev/daxN.M the tier is that device: its contents are lost.
#include <fcntl.h>

#include "tests/migrate/whole_granules_fixture.h"

namespace tidepool {
namespace {

TEST_F(WholeGranulesTest, PagesThatAreLocalGoAlong) {
  for (const uint64_t page : {3, 4, 5, 100, 511}) makeLocal(page);
  ASSERT_TRUE(placeFar());
  EXPECT_EQ(tier_->torn, 0);
  for (const uint64_t page : {3, 4, 5, 100, 511}) EXPECT_EQ(at(page), valueOf(page)) << page;
  EXPECT_EQ(at(6), 0) << "what was never touched";
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), kPagesPerGranule);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
}

TEST_F(WholeGranulesTest, IfTheDeviceRefusesAllStaysAsItWas) {
  for (const uint64_t page : {0, 7, 8, 510}) makeLocal(page);
  tier_->refuse = true;
  EXPECT_FALSE(placeFar());
  for (const uint64_t page : {0, 7, 8, 510}) EXPECT_EQ(at(page), valueOf(page)) << page;
  EXPECT_EQ(placesOf(*core_.space, granule_).local.count(), 4u);
  EXPECT_EQ(core_.budget.held(), PageCount(4));
  EXPECT_EQ(tier_->used(), Bytes()) << "no place is kept";
  tier_->refuse = false;
  EXPECT_TRUE(placeFar());
  EXPECT_EQ(at(510), valueOf(510));
}

TEST_F(WholeGranulesTest, PartOfWhatIsLocalIsNotDemoted) {
  for (const uint64_t page : {3, 4, 9}) makeLocal(page);
  const GranuleLock granule(*core_.space, granule_);
  EXPECT_EQ(mover_->demoter.demote(granule, firstPage(granule_) + 3, 2), 0u)
      << "page 9 would go, too";
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(mover_->demoter.demote(granule, firstPage(granule_) + 3, 7), 3u);
  EXPECT_EQ(at(9), valueOf(9));
}

TEST_F(WholeGranulesTest, ReleasedPartsAreTakenAgainAndReadAsZeros) {
  ASSERT_TRUE(placeFar());
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  ASSERT_TRUE(ranges_->release(addressOf(10), Bytes(20 * kPageSize)));
  ASSERT_TRUE(ranges_->claim(addressOf(15), Bytes(5 * kPageSize)));
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    if (page >= 10 && page < 15) continue;
    if (page >= 20 && page < 30) continue;
    EXPECT_EQ(at(page), page >= 15 && page < 20 ? 0 : valueOf(page)) << page;
  }
  EXPECT_EQ(tier_->torn, 0);
}

TEST_F(WholeGranulesTest, TheLastReleaseGivesThePlaceBack) {
  ASSERT_TRUE(placeFar());
  at(400) = 9;
  ASSERT_TRUE(ranges_->release(addressOf(0), Bytes(200 * kPageSize)));
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
  ASSERT_TRUE(ranges_->withdraw(addressOf(300), Bytes(212 * kPageSize)));
  EXPECT_EQ(at(250), 0);
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize)) << "pages 200 to 299 are in use";
  ASSERT_TRUE(ranges_->release(addressOf(200), Bytes(312 * kPageSize)));
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), 0u);
  ASSERT_TRUE(ranges_->claim(start_, Bytes(kGranuleSize)));
  ASSERT_TRUE(placeFar());
  EXPECT_EQ(at(400), 0);
}

TEST_F(WholeGranulesTest, ComesBackAsAWholeAndGoesAgain) {
  ASSERT_TRUE(placeFar());
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(promoteWhole());
    EXPECT_EQ(placesOf(*core_.space, granule_).local.count(), kPagesPerGranule);
    EXPECT_EQ(core_.budget.held(), PageCount(kPagesPerGranule));
    EXPECT_EQ(tier_->used(), Bytes());
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      ASSERT_EQ(at(page), static_cast<uint8_t>(valueOf(page) + turn)) << page;
      at(page) = static_cast<uint8_t>(valueOf(page) + turn + 1);
    }
    EXPECT_FALSE(promoteWhole()) << "there already";
    ASSERT_TRUE(placeFar());
    EXPECT_EQ(core_.budget.held(), PageCount(0));
  }
  EXPECT_EQ(core_.stats->promotions, 3 * kPagesPerGranule);
  EXPECT_EQ(tier_->torn, 0);
}

TEST_F(WholeGranulesTest, WithoutRoomItStays) {
  ASSERT_TRUE(placeFar());
  at(9) = 9;
  core_.budget.setLimit(PageCount(kPagesPerGranule - 1));
  EXPECT_FALSE(promoteWhole());
  EXPECT_EQ(at(9), 9);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
}

TEST_F(WholeGranulesTest, WhatIsNotPlainStays) {
  ASSERT_TRUE(placeFar());
  ASSERT_TRUE(ranges_->release(addressOf(100), Bytes(kPageSize)));
  EXPECT_FALSE(promoteWhole());
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
}

TEST_F(WholeGranulesTest, NoTierGoesWhileTheProgramAsksWhatKindTheyAre) {
  // Tiers of a fabric are destroyed by another thread, once nobody can be looking at them.
  int asked = 0;
  bool may_go = false;
  tier_->when_asked = [&] {
    ++asked;
    std::thread other([&] {
      if (!core_.tiers.listing().tryLock()) return;
      may_go = true;
      core_.tiers.listing().unlock();
    });
    other.join();
  };
  EXPECT_NE(allocate(1), 0u);
  EXPECT_GT(asked, 0);
  EXPECT_FALSE(may_go);
  tier_->when_asked = nullptr;
}

TEST_F(WholeGranulesTest, WhatDevicesMayWriteToStays) {
  ASSERT_TRUE(placeFar());
  for (const uint64_t page : {0, 77, 511}) at(page) = valueOf(page);
  const UniqueFd direct(open("/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  if (!direct.valid()) GTEST_SKIP() << "no O_DIRECT here";
  EXPECT_FALSE(promoteWhole());
  for (const uint64_t page : {0, 77, 511}) EXPECT_EQ(at(page), valueOf(page));
  at(78) = 78;
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), kPagesPerGranule);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
}

TEST_F(WholeGranulesTest, NoStoreIsLostAndNoReadIsWrongMeanwhile) {
  ASSERT_TRUE(placeFar());
  underUse([&] {
    ASSERT_TRUE(promoteWhole());
    // While a system call reads one of its pages that page is pinned: then none of them goes.
    while (!placeFar()) {
      ASSERT_EQ(placesOf(*core_.space, granule_).local.count(), kPagesPerGranule);
      std::this_thread::yield();
    }
  });
}

TEST_F(WholeGranulesTest, AgreesWithAModelOfBytes) {
  ASSERT_TRUE(placeFar());
  std::mt19937 random(7);
  std::vector<int> model(kPagesPerGranule, 0);  // -1: not handed out
  for (int step = 0; step < 400; ++step) {
    const uint64_t first = random() % kPagesPerGranule;
    const uint64_t count = 1 + random() % std::min<uint64_t>(40, kPagesPerGranule - first);
    const Bytes size(count * kPageSize);
    const auto begin = model.begin() + static_cast<long>(first);
    const auto end = begin + static_cast<long>(count);
    if (std::find(begin, end, -1) == end) {
      if (random() % 3 == 0) {
        ASSERT_TRUE(ranges_->discard(addressOf(first), size));
        std::fill(begin, end, 0);
      } else if (random() % 2 == 0 && first > 0) {  // page 0 keeps the granule in use
        ASSERT_TRUE(ranges_->release(addressOf(first), size));
        std::fill(begin, end, -1);
      } else {
        for (uint64_t page = first; page < first + count; ++page) {
          const auto value = static_cast<uint8_t>(random() % 200);
          at(page) = value;
          model[page] = value;
        }
      }
    } else if (std::count(begin, end, -1) == static_cast<long>(count)) {
      ASSERT_TRUE(ranges_->claim(addressOf(first), size));
      std::fill(begin, end, 0);
    }
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      if (model[page] >= 0) {
        ASSERT_EQ(at(page), model[page]) << page << " at step " << step;
      }
    }
  }
  EXPECT_EQ(tier_->torn, 0);
}

}  // namespace
}  // namespace tidepool
