// SPDX-License-Identifier: Apache-2.0
// The balancer's pure decisions, the window against a program of hot and cold pages in particular.
#include "runtime/policy/watching.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tidepool {
namespace {

constexpr uint64_t kFar = 210'000, kLocal = 50'000, kCapacity = 50'000;
constexpr Nanoseconds kAnyLength(2'000'000'000);
// A page of a tier 150 ns away, moved in 20 us.
constexpr MoveWorth kPage{Nanoseconds(20'000), Nanoseconds(150)};

/// Pages of which a tenth are hot, each used so often a second; the cold ones 80 times less.
struct Program {
  double hot_rate = 1300;
  double share(Nanoseconds window) const {
    const double used = hot_rate * static_cast<double>(window.value()) * 1e-9;
    return 0.1 * (1 - std::exp(-used)) + 0.9 * (1 - std::exp(-used / 80));
  }
};

/// Of eight granules that are used alike.
WatchWindow::Sample sampleOf(uint64_t watched, uint64_t seen) {
  WatchWindow::Sample sample;
  for (uint64_t i = 0; i < 8; ++i) {
    const auto part = [i](uint64_t of) { return of * (i + 1) / 8 - of * i / 8; };
    sample.add(part(watched), std::min(part(watched), part(seen)));
  }
  return sample;
}

WatchWindow::Sample sampleOf(double share) {
  return sampleOf(4096, static_cast<uint64_t>(4096 * share));
}

void watch(WatchWindow& window, const Program& program, int times) {
  for (int i = 0; i < times; ++i) {
    const WatchWindow::Sample seen = sampleOf(program.share(window.length()));
    window.observe(window.length(), seen, seen, {kFar, kLocal, kCapacity}, kAnyLength);
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
                 {kFar, kLocal, kCapacity}, kAnyLength);
  EXPECT_FALSE(window.telling());
  EXPECT_EQ(window.length(), right);
}

TEST(WatchWindow, KeepsItsBoundsWhenNothingOrEverythingIsSeen) {
  WatchWindow window;
  for (const double share : {0.0, 1.0}) {
    for (int i = 0; i < 200; ++i) {
      window.observe(window.length(), sampleOf(share), sampleOf(share), {kFar, kLocal, kCapacity},
                     kAnyLength);
    }
    EXPECT_GE(window.length(), Nanoseconds(500'000));
    EXPECT_LE(window.length(), Nanoseconds(2'000'000'000));
  }
  const Nanoseconds before = window.length();
  window.observe(before, {}, {}, {kFar, kLocal, kCapacity}, kAnyLength);
  EXPECT_EQ(window.length(), before);
}

RC_GTEST_PROP(MoveWorth, ASightingInTheLongestWindowPaysAndInAMuchLongerOneDoesNot, ()) {
  const MoveWorth worth{Nanoseconds(*rc::gen::inRange<uint64_t>(1'000, 5'000'000)),
                        Nanoseconds(*rc::gen::inRange<uint64_t>(1, 3'000))};
  const Nanoseconds longest = worth.longestWindow();
  RC_ASSERT(longest >= Nanoseconds(500'000) && longest <= kAnyLength);
  if (longest > Nanoseconds(500'000)) RC_ASSERT(worth.pays(longest, 1));
  if (longest < kAnyLength) RC_ASSERT(!worth.pays(Nanoseconds(longest.value() * 5 / 4), 1));
}

TEST(MoveWorth, WhatSavesNothingNeverPaysAndIsSeldomLookedAt) {
  const MoveWorth none{Nanoseconds(20'000), Nanoseconds(0)};
  EXPECT_FALSE(none.pays(Nanoseconds(500'000), 1));
  EXPECT_EQ(none.longestWindow(), kAnyLength);
}

TEST(MoveWorth, MustPayMoreOftenWhereTheBarIsHigher) {
  const Nanoseconds window(10'000'000);  // 1,000 uses save 150 us, 7.5 times the cost
  EXPECT_TRUE(kPage.pays(window, 4));
  EXPECT_FALSE(kPage.pays(window, 8));
}

// Capacity is much larger than the hot set, so that no window shows as many pages as fit. It must
// not become so long that what it shows is worth nothing: then nothing was ever promoted.
TEST(WatchWindow, WithASmallHotSetIsAsLongAsASightingIsWorthAMove) {
  WatchWindow window;
  const WatchWindow::Sample seen = sampleOf(8192, 2);  // 64 of 260,000 pages, however long
  for (int i = 0; i < 100; ++i) {
    window.observe(window.length(), seen, seen, {kFar, kLocal, kCapacity}, kPage.longestWindow());
  }
  EXPECT_TRUE(window.telling()) << "it shows little, and all of it tells";
  EXPECT_EQ(window.length(), kPage.longestWindow());
  EXPECT_TRUE(kPage.pays(window.length(), 1));
  EXPECT_TRUE(window.scarce());
}

TEST(WatchWindow, IsNotScarceWhereCapacitySortsPages) {
  for (const double rate : {200.0, 1300.0}) {
    WatchWindow window;
    const Program program{rate};
    for (int i = 0; i < 60; ++i) {
      const WatchWindow::Sample seen = sampleOf(program.share(window.length()));
      window.observe(window.length(), seen, seen, {kFar, kLocal, kCapacity}, kPage.longestWindow());
      EXPECT_FALSE(window.scarce());
    }
    EXPECT_NEAR(seenPages(window, program), 0.7 * kCapacity, 0.1 * kCapacity) << rate;
  }
}

TEST(WatchWindow, BecomesShorterAtOnceWhenAFasterTierIsLeft) {
  WatchWindow window;
  for (int i = 0; i < 60; ++i) {
    window.observe(window.length(), sampleOf(8192, 0), sampleOf(8192, 0), {kFar, kLocal, kCapacity},
                   kAnyLength);
  }
  EXPECT_EQ(window.length(), kAnyLength);
  window.observe(window.length(), sampleOf(8192, 0), sampleOf(8192, 0), {kFar, kLocal, kCapacity},
                 kPage.longestWindow());
  EXPECT_EQ(window.length(), kPage.longestWindow());
}

// A share that is not looked at grows with the window, but not when that is as long as it may be.
TEST(WatchWindow, BelievesNoMoreOfWhatItDoesNotWatchWhenItCannotGrow) {
  WatchWindow window;
  const WatchWindow::Sizes sizes{kFar, kLocal, kCapacity};
  const WatchWindow::Sample seen = sampleOf(4096, 8);
  for (int i = 0; i < 60; ++i) {
    window.observe(window.length(), seen, seen, sizes, kPage.longestWindow());
  }
  const uint64_t before = window.use(sizes).far;
  for (int i = 0; i < 200; ++i) {
    window.observe(window.length(), {}, seen, sizes, kPage.longestWindow());
  }
  EXPECT_EQ(window.use(sizes).far, before);
  EXPECT_EQ(window.length(), kPage.longestWindow());
}

/// Pages of one kind, each used at random times, so often a second.
struct PageKind {
  uint64_t pages;
  double rate;
};

/// Looks at all of them so often, as the balancer does: a sweep, and where what it saw is in doubt,
/// at once another look. Returns how many of each kind would have been promoted.
std::vector<uint64_t> promotedOf(const std::vector<PageKind>& kinds, int sweeps) {
  std::mt19937 random(11);
  WatchWindow window;
  std::vector<std::vector<PageScore>> scores;
  for (const PageKind& kind : kinds) scores.emplace_back(kind.pages);
  std::vector<uint64_t> promoted(kinds.size(), 0);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    uint64_t sightings = 0;
    const Evidence wanted = window.scarce() ? Evidence::kRunning : Evidence::kOnce;
    for (size_t k = 0; k < kinds.size(); ++k) {
      const double length = static_cast<double>(window.length().value());
      std::bernoulli_distribution used(1 - std::exp(-kinds[k].rate * length * 1e-9));
      for (PageScore& score : scores[k]) {
        const bool seen = used(random);
        sightings += seen ? 1 : 0;
        score = score.watchedFar(seen);
        if (seen && !score.enough(wanted)) score = score.watchedFar(used(random));
        if (!kPage.pays(window.length(), 1) || !score.enough(wanted)) continue;
        ++promoted[k];
        score = PageScore();  // looked at afresh, as if it had gone far again
      }
    }
    window.observe(window.length(), sampleOf(kFar, sightings), {}, {kFar, kLocal, kCapacity},
                   kPage.longestWindow());
  }
  return promoted;
}

TEST(SmallHotSet, IsPromotedAndPagesUsedOnceASecondHardlyAre) {
  const std::vector<PageKind> kinds{{64, 2000}, {20'000, 1}, {kFar - 20'064, 0.001}};
  const std::vector<uint64_t> early = promotedOf(kinds, 40);
  const std::vector<uint64_t> late = promotedOf(kinds, 140);
  const std::vector<double> each{static_cast<double>(late[0] - early[0]) / 100 / 64,
                                 static_cast<double>(late[1] - early[1]) / 100 / 20'000,
                                 static_cast<double>(late[2] - early[2]) / 100 / kFar};
  EXPECT_GT(each[0], 0.99) << "of the hot pages, each sweep";
  // Seen by chance in one window of 15, and again in one of 15 of those.
  EXPECT_LT(each[1], 0.01);
  EXPECT_LT(each[2], 0.00001);
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

TEST(PageScore, AGlimpseIsHeatAndNoEvidence) {
  PageScore score;
  EXPECT_FALSE(score.known());
  score = score.glimpsed();
  EXPECT_TRUE(score.known());
  EXPECT_EQ(score.heat(), PageScore::kSighting);
  EXPECT_FALSE(score.enough(Evidence::kOnce));
  EXPECT_FALSE(score.cold());
  // The next look tells.
  EXPECT_EQ(score.watchedFar(false).heat(), 0);
  EXPECT_EQ(score.watchedFar(false).raw(), PageScore().watchedFar(false).raw());
  score = PageScore().watchedFar(true).watchedFar(true);
  EXPECT_EQ(score.glimpsed().heat(), score.heat());
  EXPECT_EQ(score.glimpsed().sightings(), score.sightings());
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

TEST(PageScore, IsEnoughAfterOneSightingTwoOrTwoInARow) {
  const PageScore once = PageScore().watchedFar(true);
  EXPECT_TRUE(once.enough(Evidence::kOnce));
  EXPECT_FALSE(once.enough(Evidence::kAgain));
  PageScore now = once;
  // Every other time is never twice running.
  for (int i = 0; i < 20; ++i) {
    now = now.watchedFar(false).watchedFar(true);
    EXPECT_TRUE(now.enough(Evidence::kAgain));
    EXPECT_FALSE(now.enough(Evidence::kRunning));
  }
  EXPECT_TRUE(now.watchedFar(true).enough(Evidence::kRunning));
  EXPECT_TRUE(once.watchedFar(true).enough(Evidence::kRunning));
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
