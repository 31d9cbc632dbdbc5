// SPDX-License-Identifier: Apache-2.0
// The size of the compressed pool follows what a page of memory is worth on either side.
#include "runtime/policy/pool_size.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

using Left = PoolSize::Left;
constexpr PageCount kLimit(32'000);
constexpr PageCount kHeld(8'000);
constexpr PageCount kEntries(40'000);

class Size : public testing::Test {
 protected:
  PageCount adjust(PageCount held = kHeld) {
    size_.adjust(kLimit, held, kEntries);
    return size_.target();
  }
  void hits(uint32_t age, int count) {
    for (int i = 0; i < count; ++i) size_.onHit(age);
  }
  /// So many pages leave for far memory; the first `back` of them are touched there.
  void leave(uint64_t count, uint64_t back, Left how = Left::kWrittenBack, uint64_t from = 0) {
    for (uint64_t i = from; i < from + count; ++i) size_.onLeft(PageIndex(i), how);
    for (uint64_t i = from; i < from + back; ++i) size_.onFarFault(PageIndex(i));
  }
  void measure(uint64_t hit, uint64_t far, uint64_t pack = 5'000) {
    for (int i = 0; i < 1000; ++i) {
      size_.onHitTook(Nanoseconds(hit));
      size_.onFarTook(Nanoseconds(far));
      size_.onPackTook(Nanoseconds(pack));
    }
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

TEST_F(Size, CountsAPageThatLeftOnce) {
  adjust();
  leave(10, 10);
  for (int i = 0; i < 1000; ++i) size_.onFarFault(PageIndex(3));
  hits(0, 1000);
  EXPECT_LT(adjust(), kLimit / 2);
}

// ---- What faults cost is measured.

TEST_F(Size, FollowsWhatIsMeasured) {
  measure(3'000, 200'000, 9'000);
  EXPECT_NEAR(static_cast<double>(size_.costs().hit.value()), 3'000, 100);
  EXPECT_NEAR(static_cast<double>(size_.costs().far.value()), 200'000, 7'000);
  EXPECT_NEAR(static_cast<double>(size_.costs().pack.value()), 9'000, 300);
}

TEST_F(Size, OneThatTookVeryLongCountsAsALittleMore) {
  measure(4'000, 40'000);
  size_.onFarTook(Nanoseconds(2'000'000'000));
  EXPECT_LT(size_.costs().far, Nanoseconds(60'000));
}

TEST_F(Size, GrowsForADistantServerWhereItShrinksForANearOne) {
  for (const uint64_t far : {12'000, 200'000}) {
    size_ = PoolSize();
    size_.adjust(kLimit, kHeld, kEntries);
    for (int i = 0; i < 6; ++i) {
      hits(0, 1000);
      adjust();
    }
    const PageCount before = size_.target();
    measure(5'000, far);
    leave(1000, 300);
    hits(0, 2000);
    EXPECT_EQ(adjust() > before, far == 200'000);
  }
}

TEST_F(Size, RestsWhereFarMemoryIsAsFastAsThePool) {
  adjust();
  measure(6'000, 5'000);
  hits(PoolSize::kOldest, 5'000);
  leave(40'000, 0);
  adjust();
  EXPECT_TRUE(size_.resting());
}

TEST_F(Size, APageThatDoesNotCompressMakesRoomForNoOther) {
  PoolSize::Window window;
  window.held = PageCount(1000);
  window.entries = PageCount(1000);
  window.young = window.old = 100;
  window.back = {100, 100};
  const PoolSize::Worth worth = PoolSize::worthOf(window, {});
  EXPECT_GT(worth.local, 0);
  EXPECT_EQ(worth.more, 0);
  EXPECT_EQ(worth.last, 0);
  window.entries = PageCount(3000);
  EXPECT_GT(PoolSize::worthOf(window, {}).more, 0);
  EXPECT_EQ(PoolSize::worthOf({}, {}).local, 0);
}

// ---- Pages that have a copy in far memory.

TEST_F(Size, TakesCleanPagesIfThoseThatPassReturnSooner) {
  adjust();
  const PageIndex page(1);
  ASSERT_FALSE(size_.takesClean(page));
  leave(2000, 1000, Left::kPassedBy);
  adjust();
  EXPECT_TRUE(size_.takesClean(page));
  uint64_t left_out = 0;
  for (uint64_t i = 0; i < 8000; ++i) left_out += size_.takesClean(PageIndex(i)) ? 0u : 1u;
  EXPECT_GT(left_out, 500u) << "to see what becomes of them";
  EXPECT_LT(left_out, 2000u);
  leave(2000, 1, Left::kPassedBy);
  hits(PoolSize::kOldest, 1000);
  adjust();
  EXPECT_FALSE(size_.takesClean(page)) << "packing them costs more than it saves";
}

TEST_F(Size, AFullPoolTakesCleanPagesOnlyIfTheyReturnMoreThanWhatTheyPushOut) {
  for (const PageCount held : {kHeld, kLimit / 2}) {
    size_ = PoolSize();
    adjust(held);
    leave(2000, 1000, Left::kPassedBy);
    leave(2000, 1200, Left::kWrittenBack, 10'000);
    adjust(held);
    EXPECT_EQ(size_.takesClean(PageIndex(1)), held == kHeld);
  }
}

}  // namespace
}  // namespace tidepool
