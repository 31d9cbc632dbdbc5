// SPDX-License-Identifier: Apache-2.0
// The balancer's pure decisions, the window against a program of hot and cold pages in particular.
#include "runtime/policy/watching.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidepool {
namespace {

constexpr uint64_t kFar = 210'000, kLocal = 50'000, kCapacity = 50'000;

/// Pages of which a tenth are hot, each used so often a second; the cold ones 80 times less.
struct Program {
  double hot_rate = 1300;
  double share(Nanoseconds window) const {
    const double used = hot_rate * static_cast<double>(window.value()) * 1e-9;
    return 0.1 * (1 - std::exp(-used)) + 0.9 * (1 - std::exp(-used / 80));
  }
};

WatchWindow::Sample sampleOf(double share) { return {4096, static_cast<uint64_t>(4096 * share)}; }

void watch(WatchWindow& window, const Program& program, int times) {
  for (int i = 0; i < times; ++i) {
    const WatchWindow::Sample seen = sampleOf(program.share(window.length()));
    window.observe(window.length(), seen, seen, {kFar, kLocal, kCapacity});
  }
}

double seenPages(const WatchWindow& window, const Program& program) {
  return program.share(window.length()) * (kFar + kLocal);
}

TEST(WatchWindow, FindsTheWindowInWhichAsManyPagesAreSeenAsFit) {
  for (const double rate : {10.0, 1300.0}) {
    WatchWindow window;
    const Program program{rate};
    watch(window, program, 60);
    EXPECT_NEAR(seenPages(window, program), 0.7 * kCapacity, 0.1 * kCapacity) << rate;
    EXPECT_TRUE(window.telling());
  }
}

TEST(WatchWindow, SightingsOfOneThatIsMuchTooLongDoNotTell) {
  WatchWindow window;
  watch(window, Program{1300}, 60);
  const Nanoseconds right = window.length();
  const Program faster{1300 * 10};
  watch(window, faster, 1);
  EXPECT_FALSE(window.telling());
  watch(window, faster, 20);
  EXPECT_TRUE(window.telling());
  EXPECT_LT(window.length(), right);
}

TEST(WatchWindow, OneThatEndedLateChangesNothing) {
  WatchWindow window;
  watch(window, Program{1300}, 60);
  const Nanoseconds right = window.length();
  window.observe(Nanoseconds(right.value() * 10), sampleOf(1), sampleOf(1),
                 {kFar, kLocal, kCapacity});
  EXPECT_FALSE(window.telling());
  EXPECT_EQ(window.length(), right);
}

TEST(WatchWindow, KeepsItsBoundsWhenNothingOrEverythingIsSeen) {
  WatchWindow window;
  for (const double share : {0.0, 1.0}) {
    for (int i = 0; i < 200; ++i) {
      window.observe(window.length(), sampleOf(share), sampleOf(share), {kFar, kLocal, kCapacity});
    }
    EXPECT_GE(window.length(), Nanoseconds(500'000));
    EXPECT_LE(window.length(), Nanoseconds(2'000'000'000));
  }
  const Nanoseconds before = window.length();
  window.observe(before, {}, {}, {kFar, kLocal, kCapacity});
  EXPECT_EQ(window.length(), before);
}

TEST(LookShares, FollowWhatLooksFindAndKeepSomeForTheOther) {
  using Kind = LookShares::Kind;
  LookShares shares;
  EXPECT_EQ(shares.takeLocal(16), 8u);
  for (int i = 0; i < 100; ++i) {
    shares.note(Kind::kLocal, 0, Nanoseconds(100'000));
    shares.note(Kind::kFar, 60, Nanoseconds(100'000));
  }
  EXPECT_EQ(shares.takeLocal(16), 2u);
  for (int i = 0; i < 100; ++i) shares.note(Kind::kLocal, 240, Nanoseconds(100'000));
  const uint64_t most = shares.takeLocal(16);
  EXPECT_GT(most, 12u);
  EXPECT_LT(most, 16u);
}

TEST(LookShares, AreOfTime) {
  using Kind = LookShares::Kind;
  LookShares shares;
  for (int i = 0; i < 100; ++i) {
    shares.note(Kind::kLocal, 50, Nanoseconds(50'000));
    shares.note(Kind::kFar, 1, Nanoseconds(1'000'000));
  }
  // An eighth of the time is one look at direct pages for 140 at local ones: seldom, but not never.
  uint64_t local = 0;
  for (int i = 0; i < 1410; ++i) {
    const uint64_t taken = shares.takeLocal(16);
    EXPECT_GE(taken, 15u);
    local += taken;
  }
  EXPECT_NEAR(static_cast<double>(1410 * 16 - local), 160, 2);
}

TEST(PromotionBar, RisesWhileMostPromotionsAreInVain) {
  PromotionBar bar;
  for (int second = 0; second < 3; ++second) {
    for (int i = 0; i < 100; ++i) bar.note(i % 3 == 0);
    bar.judge();
  }
  EXPECT_EQ(bar.height(), 8);
  for (int second = 0; second < 20; ++second) {
    for (int i = 0; i < 100; ++i) bar.note(false);
    bar.judge();
  }
  EXPECT_EQ(bar.height(), PromotionBar::kHighest);
  for (int second = 0; second < 3; ++second) {
    for (int i = 0; i < 100; ++i) bar.note(i % 3 != 0);
    bar.judge();
  }
  EXPECT_EQ(bar.height(), 8);
}

// When the hot set moves, what was promoted before goes a little at a time, some of it unused. With
// no promotions to set against it, that kept the bar up, and the bar kept promotions away.
TEST(PromotionBar, FallsWhenAlmostNothingIsPromoted) {
  PromotionBar bar;
  for (int second = 0; second < 10; ++second) {
    for (int i = 0; i < 100; ++i) bar.note(false);
    bar.judge();
  }
  for (int second = 0; second < 10; ++second) {
    for (int i = 0; i < 5; ++i) bar.note(false);
    bar.judge();
  }
  EXPECT_EQ(bar.height(), 1);
}

TEST(PageScore, IsColdOnlyOnceItWasWatchedAndFellSilent) {
  PageScore score;
  EXPECT_FALSE(score.cold());
  EXPECT_TRUE(score.watchedLocal(false).cold());
  score = score.watchedFar(true);
  EXPECT_TRUE(score.writtenHot());
  for (int i = 0; i < 2; ++i) score = score.watchedLocal(false);
  EXPECT_FALSE(score.cold());
  EXPECT_TRUE(score.watchedLocal(false).cold());
}

TEST(PageScore, ManySightingsAreBounded) {
  PageScore score;
  for (int i = 0; i < 1000; ++i) score = score.watchedLocal(true);
  EXPECT_EQ(score.sightings(), PageScore::kMost);
}

TEST(PageScore, APageThatIsReadStaysLongerTheSecondTime) {
  PageScore score = PageScore().watchedFar(true);
  while (!score.cold()) score = score.watchedLocal(false);
  score = score.watchedFar(true);
  EXPECT_FALSE(score.writtenHot());  // its silence says nothing of its granule
  EXPECT_FALSE(score.outdated().cold());
  int silent = 0;
  for (; !score.cold(); ++silent) score = score.watchedLocal(false);
  EXPECT_GT(silent, 3);
  // Not seen in the direct tier either: it was cold after all.
  score = score.watchedFar(false).watchedFar(true);
  EXPECT_TRUE(score.writtenHot());
}

TEST(PageScore, WhatCameOnOneSightingGoesSooner) {
  const PageScore score = PageScore().watchedFar(true).doubted();
  EXPECT_FALSE(score.cold());
  EXPECT_TRUE(score.watchedLocal(false).cold());
  EXPECT_TRUE(PageScore().watchedFar(true).outdated().cold());
}

TEST(Belief, IsOutdatedWhenMostOfWhatWasHotIsSilent) {
  EXPECT_FALSE(beliefOutdated(0, 0));
  EXPECT_FALSE(beliefOutdated(5, 0));  // a few pages may be chance
  EXPECT_TRUE(beliefOutdated(10, 2));
  EXPECT_FALSE(beliefOutdated(10, 3));
}

TEST(Bridge, RunsAreAsLongAsItTakesToFillLocalMemory) {
  EXPECT_EQ(bridgeFor(50'000, 24'573), 2u);
  EXPECT_EQ(bridgeFor(100, 24'573), 1u);
  EXPECT_EQ(bridgeFor(16ull << 20, 24'573), kPagesPerGranule);
  EXPECT_EQ(bridgeFor(100, 0), kPagesPerGranule);
}

}  // namespace
}  // namespace tidepool
