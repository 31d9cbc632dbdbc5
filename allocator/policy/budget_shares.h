// SPDX-License-Identifier: Apache-2.0
// Divides one budget of DRAM between the embedding tables that share it, so that the most lookups
// hit: greedily by hits gained per byte on the convex hulls of the tables' curves, which is the
// best there is up to one segment of a hull. Pure; not thread-safe.
#pragma once

#include <span>
#include <vector>

#include "runtime/base/units.h"

namespace tidepool {

/// With so much DRAM, that share of a table's lookups hits.
struct SharePoint {
  Bytes bytes;
  double hit_ratio = 0;
};

struct TableDemand {
  std::vector<SharePoint> curve;  // bytes rise; from (0, 0), which need not be in it
  double lookups_a_second = 0;    // or in whatever time, the same for all
  Bytes unit;                     // shares are multiples of it: a row, or a page of rows
  Bytes least;                    // what the batches in flight need, whatever it is worth
  Bytes most;                     // the whole table
};

/// The part of a curve that no straight line between two of its points passes above, from its first
/// point on; both coordinates rise.
std::vector<SharePoint> convexHull(std::span<const SharePoint> curve);

/// What the curve has at `bytes`: straight lines between its points, level after the last.
double hitRatioAt(std::span<const SharePoint> curve, Bytes bytes);

/// One share a table, together at most `budget`. Everyone has its least, as long as there is any:
/// what is short is taken from the last tables. Bytes that gain nothing are not given out.
std::vector<Bytes> divideBudget(Bytes budget, std::span<const TableDemand> tables);

/// Adds to `shares` what the budget has left, to the least ones first, until nobody can take more.
void giveOutRest(Bytes budget, std::span<const TableDemand> tables, std::span<Bytes> shares);

/// Lookups that hit in the unit of time of the demands.
double hitsOf(std::span<const TableDemand> tables, std::span<const Bytes> shares);

/// Shares that move only when it pays: moving them evicts and fetches rows.
class BudgetShares {
 public:
  /// A new division replaces the old one when it saves at least this share of the misses.
  static constexpr double kWorthMoving = 0.02;

  /// The shares from now on. The old ones are kept while they fit the budget and the tables' bounds
  /// and the best ones are hardly better.
  const std::vector<Bytes>& update(Bytes budget, std::span<const TableDemand> tables);
  const std::vector<Bytes>& shares() const { return shares_; }

 private:
  bool stillFit(Bytes budget, std::span<const TableDemand> tables) const;
  std::vector<Bytes> shares_;
};

}  // namespace tidepool
