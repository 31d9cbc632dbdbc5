// SPDX-License-Identifier: Apache-2.0
// A tier that has to be left under the program's feet, where granules are mapped whole: they go to
// another such tier, to one that takes single pages, or to local memory, and keep their bytes.
#include <fcntl.h>

#include "tests/migrate/whole_granules_fixture.h"

namespace tidepool {
namespace {

class VacatedGranules : public WholeGranulesTest {
 protected:
  void fill() {
    ASSERT_TRUE(placeFar());
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  }
  uint64_t wrongPages() {
    uint64_t wrong = 0;
    for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
      wrong += at(page) != valueOf(page) ? 1 : 0;
    }
    return wrong;
  }
};

TEST_F(VacatedGranules, GoToAnotherTierThatIsMappedWhole) {
  fill();
  WholeTier* const other = addWhole();
  ASSERT_TRUE(vacate());
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(other->used(), Bytes(kGranuleSize));
  EXPECT_EQ(tier_->torn + other->torn, 0);
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_EQ(core_.budget.held(), PageCount(0));
  EXPECT_TRUE(vacate()) << "there is nothing left";
  ASSERT_TRUE(promoteWhole());
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_EQ(other->used(), Bytes());
}

TEST_F(VacatedGranules, GoToATierThatTakesPages) {
  fill();
  DirectTier* const other = addPlain();
  ASSERT_TRUE(vacate());
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(other->used(), Bytes(kGranuleSize));
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_EQ(placesOf(*core_.space, granule_).direct.count(), kPagesPerGranule);
}

TEST_F(VacatedGranules, WithoutAnotherTierGoToLocalMemoryAsItHasRoom) {
  fill();
  core_.budget.setLimit(PageCount(kPagesPerGranule - 1));
  EXPECT_FALSE(vacate());
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
  core_.budget.setLimit(PageCount(kPagesPerGranule));
  ASSERT_TRUE(vacate());
  EXPECT_EQ(tier_->used(), Bytes());
  EXPECT_EQ(placesOf(*core_.space, granule_).local.count(), kPagesPerGranule);
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_F(VacatedGranules, WhatTheProgramHasGivenBackGoesAlong) {
  fill();
  WholeTier* const other = addWhole();
  ASSERT_TRUE(ranges_->release(addressOf(10), Bytes(20 * kPageSize)));
  ASSERT_TRUE(vacate());
  EXPECT_EQ(other->used(), Bytes(kGranuleSize));
  ASSERT_TRUE(ranges_->claim(addressOf(15), Bytes(5 * kPageSize)));
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) {
    if (page >= 15 && page < 20) {
      EXPECT_EQ(at(page), 0) << page;
    } else if (page < 10 || page >= 30) {
      EXPECT_EQ(at(page), valueOf(page)) << page;
    }
  }
  EXPECT_EQ(tier_->torn + other->torn, 0);
}

TEST_F(VacatedGranules, StayWhereDevicesMayWriteToThem) {
  fill();
  WholeTier* const other = addWhole();
  {
    const UniqueFd direct(open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
    if (!direct.valid()) GTEST_SKIP() << "no O_DIRECT here";
    EXPECT_FALSE(vacate());
  }
  EXPECT_EQ(other->used(), Bytes()) << "no place is kept";
  EXPECT_EQ(tier_->used(), Bytes(kGranuleSize));
  EXPECT_EQ(wrongPages(), 0u);
  EXPECT_TRUE(vacate());
  EXPECT_EQ(wrongPages(), 0u);
}

// What holds some pages of a granule here, and the others locally, has no place where it can be
// mapped as a whole only.
TEST_F(VacatedGranules, PagesOfAPlainTierAreNotPutWhereWholeGranulesAre) {
  tier_->close();
  DirectTier* const plain = addPlain();
  ASSERT_TRUE(placeFar());
  for (uint64_t page = 0; page < kPagesPerGranule; ++page) at(page) = valueOf(page);
  ASSERT_EQ(plain->used(), Bytes(kGranuleSize));
  const Promoter::Run run{firstPage(granule_) + 8, 16};
  const GranuleLock granule(*core_.space, granule_);
  ASSERT_EQ(mover_->promoter.promote(granule, {&run, 1}), 1u);
  plain->close();
  tier_->reopen();
  EXPECT_TRUE(mover_->changes.vacate(granule, 2));
  EXPECT_EQ(plain->used(), Bytes());
  EXPECT_EQ(tier_->torn, 0);
  EXPECT_EQ(wrongPages(), 0u);
}

TEST_F(VacatedGranules, NoStoreIsLostAndNoReadIsWrongMeanwhile) {
  fill();
  WholeTier* const other = addWhole();
  uint8_t from = 1;
  underUse([&] {
    Tier& left = from == 1 ? static_cast<Tier&>(*tier_) : *other;
    left.close();
    {
      const GranuleLock granule(*core_.space, granule_);
      ASSERT_TRUE(mover_->changes.vacate(granule, from));
    }
    left.reopen();
    from = from == 1 ? 2 : 1;
  });
  EXPECT_EQ(tier_->torn + other->torn, 0);
}

}  // namespace
}  // namespace tidepool
