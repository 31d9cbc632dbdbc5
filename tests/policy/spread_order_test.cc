// SPDX-License-Identifier: Apache-2.0
// The order of looks: complete, whatever the count, and spread; and what the watching window makes
// of granules in such an order, beside what it made of neighbours.
#include "runtime/policy/spread_order.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "runtime/policy/watching.h"

namespace tidepool {
namespace {

RC_GTEST_PROP(SpreadOrder, EachNumberComesOnceARoundWhateverTheCount, ()) {
  SpreadOrder order;
  for (uint64_t round = 1; round <= 3; ++round) {
    const auto count = *rc::gen::inRange<uint64_t>(1, 3000);
    std::vector<uint64_t> taken(count);
    for (uint64_t& number : taken) number = order.next(count);
    std::sort(taken.begin(), taken.end());
    for (uint64_t i = 0; i < count; ++i) RC_ASSERT(taken[i] == i);
    RC_ASSERT(order.rounds() == round);
  }
}

RC_GTEST_PROP(SpreadOrder, AFewInARowLeaveNoLargeGap, ()) {
  const auto few = *rc::gen::element<uint64_t>(4, 8, 16);
  const auto count = *rc::gen::inRange<uint64_t>(2 * few, 100'000);
  SpreadOrder order;
  for (uint64_t skipped = *rc::gen::inRange<uint64_t>(0, count); skipped > 0; --skipped) {
    order.next(count);
  }
  std::vector<uint64_t> taken(few);
  for (uint64_t& number : taken) number = order.next(count);
  std::sort(taken.begin(), taken.end());
  uint64_t gap = taken.front() + count - taken.back();
  for (size_t i = 1; i < few; ++i) gap = std::max(gap, taken[i] - taken[i - 1]);
  RC_ASSERT(gap <= 3 * count / few + 1);
}

TEST(SpreadOrder, WhatIsAddedComesInTheNextRoundAndWhatIsGoneNoMore) {
  SpreadOrder order;
  std::set<uint64_t> taken;
  for (int i = 0; i < 50; ++i) taken.insert(order.next(100));
  for (int i = 0; i < 50; ++i) taken.insert(order.next(200));
  EXPECT_EQ(taken.size(), 100u);
  EXPECT_EQ(*taken.rbegin(), 99u);
  for (int i = 0; i < 200; ++i) taken.insert(order.next(200));
  EXPECT_EQ(taken.size(), 200u);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(order.next(10), 10u);
}

constexpr uint64_t kLocal = 24, kFar = 104;  // granules; kLocal is also what fits
constexpr double kHotRate = 10'000, kColdRate = 1;

/// Watches granules a batch at a time, as the balancer does, the first local and the others far.
/// Moves nothing: what is asked is whether those are seen that should move.
class Sweeps {
 public:
  /// How many of the pages of each far granule are hot.
  using Layout = std::function<uint64_t(uint64_t granule)>;
  explicit Sweeps(Layout hot) : hot_(std::move(hot)) {}

  /// Of the sightings of hot pages in so many looks at far granules, the share that told.
  double told(const std::function<uint64_t()>& next, uint64_t looks) {
    double seen = 0, told = 0;
    for (uint64_t look = 0; look < looks;) {
      const uint64_t half = window_.telling() ? 8 : 2;
      WatchWindow::Sample local, far;
      uint64_t hot = 0;
      for (uint64_t i = 0; i < half; ++i, ++look) {
        watch(0, local);
        const uint64_t pages = hot_(next());
        watch(pages, far);
        hot += pages;
      }
      constexpr WatchWindow::Sizes kSizes{kFar * kPagesPerGranule, kLocal * kPagesPerGranule,
                                          kLocal * kPagesPerGranule};
      window_.observe(window_.length(), far, local, kSizes, kPage.longestWindow());
      seen += static_cast<double>(hot);
      told += window_.telling() ? static_cast<double>(hot) : 0;
    }
    return told / seen;
  }

 private:
  static constexpr MoveWorth kPage{Nanoseconds(20'000), Nanoseconds(150)};
  void watch(uint64_t hot, WatchWindow::Sample& sample) {
    sample.add(kPagesPerGranule, usedOf(hot, kHotRate) + usedOf(kPagesPerGranule - hot, kColdRate));
  }
  uint64_t usedOf(uint64_t pages, double rate) {
    const double uses = rate * static_cast<double>(window_.length().value()) * 1e-9;
    return std::binomial_distribution<uint64_t>(pages, 1 - std::exp(-uses))(random_);
  }
  Layout hot_;
  WatchWindow window_;
  std::mt19937 random_{3};
};

uint64_t inOnePiece(uint64_t granule) {
  return granule >= 40 && granule < 53 ? kPagesPerGranule : 0;
}
uint64_t inWholeGranules(uint64_t granule) { return granule % 8 == 3 ? kPagesPerGranule : 0; }
uint64_t scattered(uint64_t) { return kPagesPerGranule / 8; }

TEST(SpreadOrder, HotPagesAreToldHoweverTheyLie) {
  for (const auto layout : {inOnePiece, inWholeGranules, scattered}) {
    SpreadOrder order;
    Sweeps sweeps(layout);
    EXPECT_GT(sweeps.told([&] { return order.next(kFar); }, 40 * kFar), 0.95);
  }
}

// Why the order matters: a batch of neighbours is all hot or all cold. At first the window is
// stretched by the cold ones; then the hot ones are seen all at once, and it is taken for too long.
TEST(SpreadOrder, NeighboursAreNoSample) {
  uint64_t hand = 0;
  Sweeps sweeps(inOnePiece);
  EXPECT_LT(sweeps.told([&] { return hand++ % kFar; }, 40 * kFar), 0.5);
}

// A sample of whole granules is a small one: in an order by chance, some have twice as many hot
// ones as there are among all, and these must not be believed at once.
TEST(WatchWindow, GranulesAlikeAreASmallSample) {
  std::mt19937 random(5);
  Sweeps sweeps(inWholeGranules);
  EXPECT_GT(sweeps.told([&] { return random() % kFar; }, 40 * kFar), 0.9);
}

}  // namespace
}  // namespace tidepool
