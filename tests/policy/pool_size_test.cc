// SPDX-License-Identifier: Apache-2.0
// The size of the compressed pool follows what a page of memory is worth on either side.
#include "runtime/policy/pool_size.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

constexpr PageCount kLimit(32'000);
constexpr PageCount kHeld(8'000);
constexpr PageCount kEntries(40'000);

class Size : public testing::Test {
 protected:
  PageCount adjust() {
    size_.adjust(kLimit, kHeld, kEntries);
    return size_.target();
  }
  void hits(uint32_t age, int count) {
    for (int i = 0; i < count; ++i) size_.onHit(age);
  }
  /// So many pages leave for far memory; the first `back` of them are touched there.
  void leave(uint64_t count, uint64_t back) {
    for (uint64_t i = 0; i < count; ++i) size_.onWrittenBack(PageIndex(i));
    for (uint64_t i = 0; i < back; ++i) size_.onFarFault(PageIndex(i));
  }
  PoolSize size_;
};

TEST_F(Size, IsHalfOfTheBudgetAtFirst) {
  EXPECT_EQ(adjust(), kLimit / 2);
  EXPECT_TRUE(size_.takes(PageIndex(1)));
}

TEST_F(Size, ShrinksWhileTheYoungestAreWanted) {
  PageCount before = adjust();
  for (int i = 0; i < 5; ++i) {
    hits(0, 1000);
    EXPECT_LT(adjust(), before);
    before = size_.target();
  }
  for (int i = 0; i < 100; ++i) {
    hits(0, 1000);
    adjust();
  }
  EXPECT_EQ(size_.target(), kLimit / 32) << "enough to notice when that changes";
}

TEST_F(Size, StaysWhileTheOldestAreWantedToo) {
  const PageCount before = adjust();
  hits(PoolSize::kOldest, 600);
  hits(0, 600);
  EXPECT_EQ(adjust(), before);
}

TEST_F(Size, GrowsWhileWhatLeftIsWanted) {
  adjust();
  for (int i = 0; i < 5; ++i) {
    hits(0, 1000);
    adjust();
  }
  const PageCount before = size_.target();
  leave(2000, 1000);
  EXPECT_GT(adjust(), before);
  for (int i = 0; i < 100; ++i) {
    leave(1000, 1000);
    hits(PoolSize::kOldest, 1000);
    adjust();
  }
  EXPECT_EQ(size_.target(), kLimit / 2);
}

TEST_F(Size, FollowsTheLimit) {
  adjust();
  size_.adjust(kLimit / 4, kHeld, kEntries);
  EXPECT_EQ(size_.target(), kLimit / 8);
}

TEST_F(Size, RestsWhileNothingIsWantedAndSamples) {
  adjust();
  leave(50'000, 0);
  EXPECT_EQ(adjust(), kLimit / 32);
  EXPECT_TRUE(size_.resting());
  uint64_t taken = 0;
  for (uint64_t page = 0; page < 8000; ++page) taken += size_.takes(PageIndex(page)) ? 1u : 0u;
  EXPECT_GT(taken, 500u);
  EXPECT_LT(taken, 2000u);
  hits(PoolSize::kOldest, 45'000);
  leave(100, 0);
  adjust();
  EXPECT_FALSE(size_.resting());
}

TEST_F(Size, DoesNotRestForAFewThatLeave) {
  adjust();
  leave(3'000, 0);
  adjust();
  EXPECT_FALSE(size_.resting());
}

TEST_F(Size, TakesCleanPagesIfThoseThatPassReturnSooner) {
  adjust();
  EXPECT_FALSE(size_.takesClean());
  for (uint64_t page = 0; page < 2000; ++page) size_.onPassedBy(PageIndex(page));
  for (uint64_t page = 0; page < 1000; ++page) size_.onFarFault(PageIndex(page));
  adjust();
  EXPECT_TRUE(size_.takesClean());
  hits(PoolSize::kOldest, 10'000);
  adjust();
  EXPECT_FALSE(size_.takesClean());
}

TEST_F(Size, CountsAPageThatLeftOnce) {
  adjust();
  leave(10, 10);
  for (int i = 0; i < 1000; ++i) size_.onFarFault(PageIndex(3));
  hits(0, 1000);
  EXPECT_LT(adjust(), kLimit / 2);
}

}  // namespace
}  // namespace tidepool
