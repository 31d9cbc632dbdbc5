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
  /// Of a pool that is full, or has so many pages.
  PageCount adjust() { return adjust(size_.target()); }
  PageCount adjust(PageCount held) {
    size_.adjust(kLimit, held, kEntries);
    return size_.target();
  }
  void hits(uint32_t age, int count) {
    for (int i = 0; i < count; ++i) size_.onHit(age);
  }
  /// So many pages leave for far memory; the first `back` of them are touched there.
  void leave(uint64_t count, uint64_t back, Left how = Left::kWrittenBack, uint64_t from = 0) {
    for (uint64_t i = from; i < from + count; ++i) size_.onLeft(PageIndex(i), how);
    for (uint64_t i = from; i < from + back; ++i) size_.onFarFault(PageIndex(i), std::nullopt);
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
  EXPECT_EQ(size_.target(), kLimit / 128) << "enough to notice when that changes";
}

TEST_F(Size, DoesNotShrinkBeforeItIsFull) {
  const PageCount before = adjust();
  hits(0, 1000);
  EXPECT_EQ(adjust(kHeld), before);
  hits(0, 1000);
  EXPECT_LT(adjust(before - kLimit / 32), before);
}

TEST_F(Size, IsWeighedWithoutBeingFullOnceItHasBeenTurnedOver) {
  // Of xz: the youngest come and go, and what was put in once is not wanted again.
  const PageCount before = adjust();
  const auto windows = [this](int count, int young, int old) {
    for (int i = 0; i < count; ++i) {
      hits(0, young);
      hits(PoolSize::kOldest, old);
      adjust(kHeld);
    }
  };
  windows(300, 500, 10);
  EXPECT_EQ(size_.target(), before) << "the oldest may be wanted yet";
  windows(100, 500, 10);
  EXPECT_LT(size_.target(), kHeld) << "it is turned over by kEntries hits";
  size_ = PoolSize();
  adjust();
  windows(1'000, 500, 100);
  EXPECT_EQ(size_.target(), before);
}

TEST_F(Size, ShrinksFurtherTheMoreAFaultCosts) {
  for (const uint64_t cost : {1'000, 60'000}) {
    size_ = PoolSize();
    const PageCount before = adjust();
    measure(5'000, 40'000);
    size_.setFaultCost(Nanoseconds(cost));
    hits(PoolSize::kOldest, 150);
    hits(0, 800);
    EXPECT_EQ(adjust() < before, cost == 60'000);
  }
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

TEST_F(Size, ShrinksWhilePagesThatDidNotCompressReturnSoon) {
  // Of a program whose pages do not compress, nothing in the pool is young, and its memory is
  // missing.
  PageCount before = adjust();
  const auto touchFar = [&](PageCount away) {
    for (uint64_t i = 0; i < 1000; ++i) size_.onFarFault(PageIndex(100'000 + i), away);
    hits(PoolSize::kOldest, 300);
  };
  for (int i = 0; i < 5; ++i) {
    touchFar(kLimit / 64);
    EXPECT_LT(adjust(), before);
    before = size_.target();
  }
  touchFar(kLimit / 2);
  EXPECT_EQ(adjust(), before) << "a step more of local memory would not have held them";
}

TEST_F(Size, FollowsTheLimit) {
  adjust();
  size_.adjust(kLimit / 4, kHeld, kEntries);
  EXPECT_EQ(size_.target(), kLimit / 8);
}

TEST_F(Size, RestsWhileNothingIsWantedAndSamples) {
  adjust();
  leave(50'000, 0);
  EXPECT_EQ(adjust(), kLimit / 128);
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
  for (int i = 0; i < 1000; ++i) size_.onFarFault(PageIndex(3), std::nullopt);
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
    adjust();
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

// ---- Recorded: fastText, a matrix of which nine tenths are nearly zero, in a quarter of its
// memory.

struct Recorded {
  uint32_t held, entries, young, old, others, back;
  uint64_t hit, far, pack;
};

class Trainer : public Size {
 protected:
  static constexpr PageCount kOfTrainer{60'000};
  PageCount replay(const Recorded& window) {
    measure(window.hit, window.far, window.pack);
    hits(0, static_cast<int>(window.young));
    hits(PoolSize::kOldest, static_cast<int>(window.old));
    hits(PoolSize::kOldest / 2, static_cast<int>(window.others));
    leave(window.back, window.back, Left::kWrittenBack, next_);
    next_ += window.back;
    size_.adjust(kOfTrainer, PageCount(window.held), PageCount(window.entries));
    return size_.target();
  }
  uint64_t next_ = 0;
};

TEST_F(Trainer, PagesThatTakeNextToNothingStay) {
  // The oldest are seldom wanted, and all of them take a fourteenth of the budget. It went down to
  // less than that in ten seconds, and wrote 11,000 pages back, which came home one by one.
  size_.adjust(kOfTrainer, PageCount(), PageCount());
  for (const Recorded& window : {Recorded{4192, 56'500, 340, 3, 187, 0, 14'100, 233'000, 730},
                                 Recorded{4240, 57'000, 289, 3, 296, 0, 14'100, 212'000, 730},
                                 Recorded{4560, 59'900, 357, 0, 295, 0, 14'100, 212'000, 880},
                                 Recorded{4576, 59'999, 315, 2, 373, 0, 13'443, 182'887, 1'046},
                                 Recorded{4624, 60'724, 361, 6, 303, 0, 16'184, 218'326, 1'022}}) {
    EXPECT_EQ(replay(window), kOfTrainer / 2);
  }
}

TEST_F(Trainer, ThoseThatWereWrittenBackReturnAndThePoolGrows) {
  size_.adjust(kOfTrainer, PageCount(), PageCount());
  while (size_.target() > PageCount(5'600)) {
    hits(0, 1000);
    size_.adjust(kOfTrainer, size_.target(), PageCount(50'000));
  }
  const PageCount before = size_.target();
  for (const Recorded& window : {Recorded{4208, 49'791, 303, 3, 206, 6, 13'538, 427'254, 906},
                                 Recorded{4224, 49'745, 268, 9, 221, 18, 14'058, 205'256, 760},
                                 Recorded{4224, 50'256, 232, 11, 260, 16, 22'084, 285'665, 682},
                                 Recorded{4224, 50'160, 396, 5, 227, 14, 15'442, 174'349, 818},
                                 Recorded{4240, 49'918, 282, 4, 277, 17, 14'344, 216'803, 1'021},
                                 Recorded{4288, 50'649, 305, 5, 304, 20, 11'284, 165'324, 1'138}}) {
    replay(window);
  }
  EXPECT_EQ(size_.target(), before + kOfTrainer / 32 * 6);
}

// ---- Pages that have a copy in far memory.

TEST_F(Size, TakesCleanPagesIfThoseThatPassReturnSooner) {
  adjust();
  const PageIndex page(1);
  ASSERT_FALSE(size_.takesClean(page));
  leave(2000, 1000, Left::kPassedBy);
  adjust(kHeld);
  EXPECT_TRUE(size_.takesClean(page));
  uint64_t left_out = 0;
  for (uint64_t i = 0; i < 8000; ++i) left_out += size_.takesClean(PageIndex(i)) ? 0u : 1u;
  EXPECT_GT(left_out, 500u) << "to see what becomes of them";
  EXPECT_LT(left_out, 2000u);
  leave(2000, 1, Left::kPassedBy);
  hits(PoolSize::kOldest, 1000);
  adjust(kHeld);
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
