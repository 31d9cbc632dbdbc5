// SPDX-License-Identifier: Apache-2.0
// Scores, the capacity-set threshold, and the two together on generated access streams.
#include "runtime/policy/hotness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace tidepool {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// A Hotness over 4096 units with memory of its own, swept as the runtime would.
class Tracker {
 public:
  explicit Tracker(uint64_t cool_every)
      : hotness_({frequency_[0].bytes, frequency_.size() * 64},
                 {momentum_[0].bytes, momentum_.size() * 64}, cool_every) {}

  Hotness& hotness() { return hotness_; }
  ScoreHistogram histogram() const {
    ScoreHistogram histogram;
    for (uint64_t unit = 0; unit < kUnits; ++unit) {
      histogram.add(hotness_.score(unit), Bytes(1));
    }
    return histogram;
  }

  static constexpr uint64_t kUnits = 4096;

 private:
  std::vector<Line> frequency_ = std::vector<Line>(128);
  std::vector<Line> momentum_ = std::vector<Line>(128);
  Hotness hotness_;
};

TEST(Hotness, MomentumForgetsBeforeFrequency) {
  Tracker tracker(1'000'000);
  tracker.hotness().record(5, 12);
  EXPECT_EQ(tracker.hotness().score(5), 24u);
  tracker.hotness().cool();
  EXPECT_EQ(tracker.hotness().score(5), 18u);
  for (int i = 0; i < 6; ++i) tracker.hotness().cool();
  EXPECT_EQ(tracker.hotness().score(5), 12u);
  tracker.hotness().cool();
  EXPECT_EQ(tracker.hotness().score(5), 6u);
}

TEST(Hotness, CoolsByItselfWithSamples) {
  Tracker tracker(100);
  tracker.hotness().record(5, 15);
  for (uint64_t i = 0; i < 100 * 64; ++i) tracker.hotness().record(1000 + i % 50, 1);
  EXPECT_LE(tracker.hotness().score(5), 1u);
}

TEST(FitThreshold, HotSetFitsTheCapacityWhateverTheHistogram) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 5000; ++round) {
    ScoreHistogram histogram;
    const uint64_t scale = 1ull << random() % 40;
    for (uint32_t score = 0; score <= Hotness::kMaxScore; ++score) {
      if (random() % 3) histogram.add(score, Bytes(random() % scale));
    }
    const Bytes capacity(random() % (scale * 20));
    const HeatThreshold previous{static_cast<uint32_t>(1 + random() % 31), 1};
    const HeatThreshold fitted = fitThreshold(histogram, capacity, 0.2, previous);
    ASSERT_LE(histogram.from(fitted.hot), capacity);
    ASSERT_GE(fitted.hot, 1u);
    ASSERT_GE(fitted.warm, 1u);
    ASSERT_LE(fitted.warm, fitted.hot);
    // And it is the lowest that does, but for the spare room that hysteresis asks for.
    if (fitted.hot > 1) {
      const double spare = fitted.hot - 1 < previous.hot ? 0.2 / 8 : 0;
      ASSERT_GT(static_cast<double>(histogram.from(fitted.hot - 1).value()) + 2,
                static_cast<double>(capacity.value()) * (1 - spare));
    }
  }
}

TEST(FitThreshold, EverythingSeenIsHotWhenItFits) {
  ScoreHistogram histogram;
  histogram.add(0, Bytes(1000));
  histogram.add(1, Bytes(10));
  histogram.add(30, Bytes(10));
  const HeatThreshold fitted = fitThreshold(histogram, Bytes(500), 0.1, {});
  EXPECT_EQ(fitted.heatOf(1), Heat::kHot);
  EXPECT_EQ(fitted.heatOf(0), Heat::kCold);
}

TEST(FitThreshold, NothingIsHotWithoutCapacity) {
  ScoreHistogram histogram;
  histogram.add(Hotness::kMaxScore, Bytes(1));
  const HeatThreshold fitted = fitThreshold(histogram, Bytes(0), 0.1, {});
  EXPECT_NE(fitted.heatOf(Hotness::kMaxScore), Heat::kHot);
}

// Runs sweeps over a stream, moving what is hot in and what is cold out; returns moves a sweep.
class Mover {
 public:
  explicit Mover(uint64_t capacity) : capacity_(capacity), local_(Tracker::kUnits) {}
  uint64_t sweep(Tracker& tracker) {
    threshold_ = fitThreshold(tracker.histogram(), Bytes(capacity_), 0.25, threshold_);
    uint64_t moves = 0;
    for (uint64_t unit = 0; unit < Tracker::kUnits; ++unit) {
      const Heat heat = threshold_.heatOf(tracker.hotness().score(unit));
      if (heat == Heat::kHot && !local_[unit]) {
        local_[unit] = true;
        ++moves;
      } else if (heat == Heat::kCold && local_[unit]) {
        local_[unit] = false;
        ++moves;
      }
    }
    return moves;
  }
  bool local(uint64_t unit) const { return local_[unit]; }

 private:
  uint64_t capacity_;
  std::vector<bool> local_;
  HeatThreshold threshold_{};
};

TEST(Hotness, WarmBandKeepsAConstantStreamStill) {
  Tracker tracker(4000);
  Mover mover(600);
  std::mt19937_64 random(7);
  uint64_t late_moves = 0;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (int i = 0; i < 2000; ++i) {
      const uint64_t unit = random() % 10 ? random() % 400 : random() % Tracker::kUnits;
      tracker.hotness().record(unit, 1);
    }
    const uint64_t moves = mover.sweep(tracker);
    if (sweep >= 20) late_moves += moves;
  }
  uint64_t hot_local = 0;
  for (uint64_t unit = 0; unit < 400; ++unit) hot_local += mover.local(unit);
  EXPECT_GE(hot_local, 390u);
  // 40 sweeps over 4096 units: the 400 hot ones stay, noise moves a few of the rest.
  EXPECT_LT(late_moves, 40 * 4096 / 20u);
}

TEST(Hotness, AShiftedHotSetIsFoundAgain) {
  Tracker tracker(2000);
  Mover mover(600);
  std::mt19937_64 random(9);
  const auto phase = [&](uint64_t first, int sweeps) {
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      for (int i = 0; i < 2000; ++i) tracker.hotness().record(first + random() % 400, 1);
      mover.sweep(tracker);
    }
  };
  phase(0, 30);
  phase(2000, 10);  // 50 samples a unit
  uint64_t regained = 0;
  for (uint64_t unit = 2000; unit < 2400; ++unit) regained += mover.local(unit);
  EXPECT_GE(regained, 360u);
}

}  // namespace
}  // namespace tidepool
