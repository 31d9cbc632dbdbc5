// SPDX-License-Identifier: Apache-2.0
// The division of DRAM between tables: against exhaustive search on small cases, its bounds, and
// when it stays as it is.
#include "allocator/policy/budget_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tidepool {
namespace {

TableDemand demand(std::vector<SharePoint> curve, double rate, uint64_t most) {
  return {.curve = std::move(curve),
          .lookups_a_second = rate,
          .unit = Bytes(1),
          .least = Bytes(0),
          .most = Bytes(most)};
}

/// A concave curve of `points` points, ten bytes apart.
std::vector<SharePoint> concave(std::mt19937_64& random, uint64_t points) {
  std::vector<double> gains(points);
  for (double& gain : gains) gain = static_cast<double>(random() % 1000) / 1000.0 / points;
  std::sort(gains.rbegin(), gains.rend());
  std::vector<SharePoint> curve;
  double sum = 0;
  for (uint64_t i = 0; i < points; ++i) curve.push_back({Bytes(10 * (i + 1)), sum += gains[i]});
  return curve;
}

/// The most hits with all divisions in units of ten bytes.
double best(const std::vector<TableDemand>& tables, size_t from, uint64_t budget) {
  if (from == tables.size()) return 0;
  double most = 0;
  for (uint64_t share = 0; share <= std::min(budget, tables[from].most.value()); share += 10) {
    const std::vector<TableDemand> one = {tables[from]};
    const std::vector<Bytes> given = {Bytes(share)};
    most = std::max(most, hitsOf(one, given) + best(tables, from + 1, budget - share));
  }
  return most;
}

TEST(ConvexHull, LeavesOutWhatLiesBelow) {
  const std::vector<SharePoint> curve = {
      {Bytes(0), 0}, {Bytes(10), 0.1}, {Bytes(20), 0.5}, {Bytes(30), 0.4}, {Bytes(40), 0.6}};
  const std::vector<SharePoint> hull = convexHull(curve);
  ASSERT_EQ(hull.size(), 3u);
  EXPECT_EQ(hull[1].bytes, Bytes(20));
  EXPECT_EQ(hull[2].bytes, Bytes(40));
}

TEST(ConvexHull, IsNowhereBelowTheCurve) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<SharePoint> curve = {{}};
    for (uint64_t i = 1; i < 12; ++i) {
      curve.push_back({Bytes(curve.back().bytes.value() + 1 + random() % 50),
                       curve.back().hit_ratio + static_cast<double>(random() % 100) / 1200});
    }
    const std::vector<SharePoint> hull = convexHull(curve);
    for (const SharePoint& point : curve) {
      ASSERT_GE(hitRatioAt(hull, point.bytes), point.hit_ratio - 1e-12);
    }
    ASSERT_EQ(convexHull(hull).size(), hull.size());
  }
}

TEST(HitRatio, IsStraightBetweenPointsAndLevelBehind) {
  const std::vector<SharePoint> curve = {{Bytes(10), 0.4}, {Bytes(30), 0.6}};
  EXPECT_DOUBLE_EQ(hitRatioAt(curve, Bytes(0)), 0);
  EXPECT_DOUBLE_EQ(hitRatioAt(curve, Bytes(5)), 0.2);
  EXPECT_DOUBLE_EQ(hitRatioAt(curve, Bytes(20)), 0.5);
  EXPECT_DOUBLE_EQ(hitRatioAt(curve, Bytes(100)), 0.6);
}

TEST(DivideBudget, MatchesExhaustiveSearchOnConcaveCurves) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 60; ++round) {
    std::vector<TableDemand> tables;
    for (int t = 0; t < 3; ++t) {
      const uint64_t points = 2 + random() % 6;
      tables.push_back(demand(concave(random, points), 1 + random() % 100, 10 * points));
    }
    const uint64_t budget = 10 * (random() % 20);
    const std::vector<Bytes> shares = divideBudget(Bytes(budget), tables);
    ASSERT_NEAR(hitsOf(tables, shares), best(tables, 0, budget), 1e-9);
  }
}

// Where curves have steps, at most one table is left in the middle of a segment of its hull: what
// that may lose is the gain of one segment.
TEST(DivideBudget, LosesAtMostOneSegmentOnAnyCurve) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<TableDemand> tables;
    double segment = 0;
    for (int t = 0; t < 3; ++t) {
      std::vector<SharePoint> curve;
      double ratio = 0;
      for (uint64_t i = 1; i <= 6; ++i) {
        curve.push_back({Bytes(10 * i), ratio += static_cast<double>(random() % 100) / 700});
      }
      tables.push_back(demand(curve, 1 + random() % 10, 60));
      curve.insert(curve.begin(), SharePoint{});
      const std::vector<SharePoint> hull = convexHull(curve);
      for (size_t i = 1; i < hull.size(); ++i) {
        segment = std::max(
            segment, (hull[i].hit_ratio - hull[i - 1].hit_ratio) * tables.back().lookups_a_second);
      }
    }
    const uint64_t budget = 10 * (random() % 20);
    const std::vector<Bytes> shares = divideBudget(Bytes(budget), tables);
    ASSERT_GE(hitsOf(tables, shares), best(tables, 0, budget) - segment - 1e-9);
  }
}

TEST(DivideBudget, KeepsEveryBound) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<TableDemand> tables;
    Bytes least;
    for (uint64_t t = 0; t < 1 + random() % 6; ++t) {
      TableDemand table = demand(concave(random, 8), random() % 5, 20 + random() % 100);
      table.unit = Bytes(1 + random() % 7);
      table.least = Bytes(random() % 20);
      least += table.least;
      tables.push_back(table);
    }
    const Bytes budget(random() % 400);
    const std::vector<Bytes> shares = divideBudget(budget, tables);
    Bytes sum;
    for (size_t t = 0; t < tables.size(); ++t) {
      sum += shares[t];
      ASSERT_LE(shares[t], tables[t].most);
      ASSERT_EQ(shares[t].value() % tables[t].unit.value(), 0u);
      if (budget >= least) {
        ASSERT_GT((shares[t] + tables[t].unit).value(), tables[t].least.value());
      }
    }
    ASSERT_LE(sum, budget);
  }
}

TEST(BudgetShares, StayWhileMovingHardlyPays) {
  std::vector<TableDemand> tables = {demand({{Bytes(50), 0.5}, {Bytes(100), 0.6}}, 100, 100),
                                     demand({{Bytes(50), 0.5}, {Bytes(100), 0.6}}, 101, 100)};
  BudgetShares shares;
  const std::vector<Bytes> first = shares.update(Bytes(120), tables);
  EXPECT_EQ(first[1], Bytes(70));
  std::swap(tables[0].lookups_a_second, tables[1].lookups_a_second);
  EXPECT_EQ(shares.update(Bytes(120), tables), first) << "no better to speak of";
  tables[0].lookups_a_second = 5000;
  tables[1].lookups_a_second = 10;
  EXPECT_EQ(shares.update(Bytes(120), tables)[0], Bytes(100));
}

TEST(BudgetShares, FollowABudgetThatShrinksAndTablesThatCome) {
  std::vector<TableDemand> tables = {demand({{Bytes(100), 1}}, 1, 100)};
  BudgetShares shares;
  EXPECT_EQ(shares.update(Bytes(100), tables)[0], Bytes(100));
  EXPECT_EQ(shares.update(Bytes(60), tables)[0], Bytes(60));
  tables.push_back(demand({{Bytes(10), 1}}, 1, 10));
  EXPECT_EQ(shares.update(Bytes(60), tables)[1], Bytes(10));
  tables[1].least = Bytes(10);
  tables[0].least = Bytes(55);
  EXPECT_EQ(shares.update(Bytes(60), tables)[0], Bytes(55));
  EXPECT_EQ(shares.shares()[1], Bytes(5)) << "the last one is short";
}

}  // namespace
}  // namespace tidepool
