// SPDX-License-Identifier: Apache-2.0
// The planner: benefit over cost, room, rate cap, warm band, waste feedback, determinism.
#include "runtime/policy/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tidepool {
namespace {

constexpr Bytes kGranuleBytes(kGranuleSize);

// A small machine: granules with true rates; carries plans out.
class Host {
 public:
  Host(size_t granules, size_t local, const PlanConfig& config)
      : planner_(config), capacity_(local), out_(64) {
    for (size_t i = 0; i < granules; ++i) {
      heat_.push_back({GranuleIndex(i), i < local ? Place::kLocal : Place::kFar, 0});
    }
  }
  std::vector<GranuleMove> step(Nanoseconds elapsed, Bytes wanted = Bytes(0)) {
    now_ += elapsed;
    std::vector<uint32_t> scratch(heat_.size());
    const PlanInput input{now_, heat_, Bytes((capacity_ - local()) * kGranuleSize), wanted};
    const size_t count = planner_.plan(input, scratch, out_);
    const std::vector<GranuleMove> moves(out_.begin(),
                                         out_.begin() + static_cast<std::ptrdiff_t>(count));
    for (const GranuleMove& move : moves) {
      GranuleHeat& granule = heat_[move.granule.value()];
      const bool promote = move.kind == MoveKind::kPromote;
      EXPECT_EQ(granule.place, promote ? Place::kFar : Place::kLocal);
      granule.place = promote ? Place::kLocal : Place::kFar;
      EXPECT_LE(local(), capacity_);  // at every instant: demotions come before what needs them
    }
    return moves;
  }
  size_t local() const {
    return static_cast<size_t>(std::count_if(
        heat_.begin(), heat_.end(), [](const auto& heat) { return heat.place == Place::kLocal; }));
  }
  GranuleHeat& operator[](size_t i) { return heat_[i]; }
  Planner& planner() { return planner_; }

 private:
  Planner planner_;
  size_t capacity_;
  Nanoseconds now_{1'000'000'000};
  std::vector<GranuleHeat> heat_;
  std::vector<GranuleMove> out_;
};

constexpr Nanoseconds kSecond(1'000'000'000);

TEST(Planner, MovesNothingThatDoesNotPay) {
  Host host(10, 5, {});
  // 250 ns x 10 s x rate must exceed 1.2 ms for a swap: 480 accesses a second.
  host[7].accesses_per_second = 470;
  EXPECT_TRUE(host.step(kSecond).empty());
  EXPECT_EQ(host.planner().stats().refused_by_cost, 1u);
  host[7].accesses_per_second = 490;
  const auto moves = host.step(kSecond);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].kind, MoveKind::kDemote);
  EXPECT_EQ(moves[1], (GranuleMove{GranuleIndex(7), MoveKind::kPromote}));
}

TEST(Planner, BusiestGranulesEndUpLocal) {
  Host host(64, 16, {});
  std::mt19937_64 random(1);
  std::vector<size_t> order(64);
  for (size_t i = 0; i < 64; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i = 0; i < 64; ++i) host[order[i]].accesses_per_second = i < 16 ? 1e6 : 10;
  for (int i = 0; i < 5; ++i) host.step(kSecond);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(host[order[i]].place, Place::kLocal);
  EXPECT_TRUE(host.step(kSecond).empty());
}

TEST(Planner, WarmBandStopsPingPongBetweenEquals) {
  Host host(32, 16, {});
  std::mt19937_64 random(2);
  uint64_t moves = 0;
  for (int i = 0; i < 200; ++i) {
    // All equally busy; what the sampler says wobbles by 10 % either way.
    for (size_t g = 0; g < 32; ++g) {
      host[g].accesses_per_second = 1e5 * (0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000);
    }
    moves += host.step(kSecond).size();
  }
  EXPECT_EQ(moves, 0u);
}

TEST(Planner, RateCapHoldsOverAnyInterval) {
  PlanConfig config;
  config.rate_bytes_per_second = 20.0 * kGranuleSize;
  Host host(600, 300, config);
  std::mt19937_64 random(3);
  std::vector<size_t> moved;
  for (int i = 0; i < 100; ++i) {
    for (size_t g = 0; g < 600; ++g) {
      host[g].accesses_per_second = static_cast<double>(random() % 10'000'000);
    }
    moved.push_back(host.step(Nanoseconds(100'000'000)).size());
  }
  // 20 granules a second, and a burst of at most a quarter second's worth.
  for (size_t from = 0; from < moved.size(); ++from) {
    size_t sum = 0;
    for (size_t to = from; to < moved.size(); ++to) {
      sum += moved[to];
      ASSERT_LE(static_cast<double>(sum), 2.0 * static_cast<double>(to - from) + 2 + 5 + 1e-6);
    }
  }
  EXPECT_GT(host.planner().stats().refused_by_rate, 0u);
}

TEST(Planner, PressureDemotesTheColdestWhateverTheHeat) {
  Host host(16, 8, {});
  for (size_t g = 0; g < 8; ++g) host[g].accesses_per_second = 1e6 + static_cast<double>(g);
  host[15].accesses_per_second = 1e9;
  const auto moves = host.step(kSecond, kGranuleBytes * 3);
  ASSERT_EQ(moves.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(moves[i], (GranuleMove{GranuleIndex(i), MoveKind::kDemote}));
  }
}

TEST(Planner, WastedMovesRaiseTheBarAndCalmLowersIt) {
  PlanConfig config;
  config.horizon = Nanoseconds(2'000'000'000);
  config.rate_bytes_per_second = 1e12;
  Host host(16, 8, config);
  size_t early = 0, late = 0;
  for (int i = 0; i < 60; ++i) {
    // The heat swaps sides every 100 ms, for less than moving is worth in the long run.
    for (size_t g = 0; g < 16; ++g) {
      host[g].accesses_per_second = (g < 8) == (i % 2 == 0) ? 1 : 15'000;
    }
    const size_t moves = host.step(Nanoseconds(100'000'000)).size();
    (i < 10 ? early : late) += moves;
  }
  EXPECT_GT(host.planner().stats().wasted, 0u);
  EXPECT_GT(early, 0u);
  EXPECT_LT(static_cast<double>(late) / 50, static_cast<double>(early) / 10 / 4);
  EXPECT_LE(host.planner().bar(), Planner::kHighestBar);
  for (size_t g = 0; g < 16; ++g) host[g].accesses_per_second = 0;
  for (int i = 0; i < 200; ++i) host.step(kSecond);
  EXPECT_EQ(host.planner().bar(), 1.0);
}

TEST(Planner, EqualInputGivesAnEqualPlanWhateverTheOrder) {
  std::mt19937_64 random(4);
  std::vector<GranuleHeat> heat;
  for (uint64_t i = 0; i < 200; ++i) {
    heat.push_back({GranuleIndex(i), i % 2 ? Place::kLocal : Place::kFar,
                    static_cast<double>(random() % 20) * 1e5});
  }
  std::vector<std::vector<GranuleMove>> plans;
  for (int i = 0; i < 5; ++i) {
    Planner planner{PlanConfig{}};
    std::vector<uint32_t> scratch(heat.size());
    std::vector<GranuleMove> out(64);
    out.resize(planner.plan({kSecond, heat, kGranuleBytes * 2, Bytes(0)}, scratch, out));
    plans.push_back(out);
    std::shuffle(heat.begin(), heat.end(), random);
  }
  EXPECT_FALSE(plans[0].empty());
  for (const auto& plan : plans) EXPECT_EQ(plan, plans[0]);
}

TEST(Planner, CopesWithNothingAndWithNoRoomForOutput) {
  Planner planner{PlanConfig{}};
  std::vector<GranuleMove> out(1);
  EXPECT_EQ(planner.plan({kSecond, {}, Bytes(0), kGranuleBytes}, {}, out), 0u);
  const std::vector<GranuleHeat> heat{{GranuleIndex(0), Place::kLocal, 0},
                                      {GranuleIndex(1), Place::kFar, 1e9}};
  std::vector<uint32_t> scratch(2);
  EXPECT_EQ(planner.plan({kSecond, heat, Bytes(0), Bytes(0)}, scratch, out), 0u);
}

}  // namespace
}  // namespace tidepool
