// SPDX-License-Identifier: Apache-2.0
// The division of DRAM between tables. See budget_shares.h.
#include "allocator/policy/budget_shares.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

double slope(const SharePoint& a, const SharePoint& b) {
  return (b.hit_ratio - a.hit_ratio) / static_cast<double>((b.bytes - a.bytes).value());
}

/// A straight piece of one table's hull: bytes that are all worth the same.
struct Piece {
  size_t table;
  Bytes end;
  double hits_a_byte;
};

Bytes down(Bytes bytes, Bytes unit) { return unit.value() > 1 ? unit * (bytes / unit) : bytes; }

std::vector<SharePoint> fromZero(std::span<const SharePoint> curve) {
  std::vector<SharePoint> points;
  if (curve.empty() || curve[0].bytes > Bytes(0)) points.push_back({});
  points.insert(points.end(), curve.begin(), curve.end());
  return points;
}

std::vector<Piece> piecesOf(std::span<const TableDemand> tables) {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < tables.size(); ++t) {
    const std::vector<SharePoint> hull = convexHull(fromZero(tables[t].curve));
    for (size_t i = 1; i < hull.size(); ++i) {
      const double worth = slope(hull[i - 1], hull[i]) * tables[t].lookups_a_second;
      if (worth > 0) pieces.push_back({t, hull[i].bytes, worth});
    }
  }
  // Stable: equal worth goes to the first table, and a table's pieces stay in order.
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.hits_a_byte > b.hits_a_byte; });
  return pieces;
}

}  // namespace

std::vector<SharePoint> convexHull(std::span<const SharePoint> curve) {
  std::vector<SharePoint> hull;
  for (const SharePoint& point : curve) {
    if (!hull.empty() &&
        (point.bytes <= hull.back().bytes || point.hit_ratio <= hull.back().hit_ratio)) {
      continue;
    }
    while (hull.size() > 1 &&
           slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), point)) {
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}

double hitRatioAt(std::span<const SharePoint> curve, Bytes bytes) {
  SharePoint before;
  for (const SharePoint& point : curve) {
    if (point.bytes > bytes) {
      return before.hit_ratio +
             slope(before, point) * static_cast<double>((bytes - before.bytes).value());
    }
    before = point;
  }
  return before.hit_ratio;
}

std::vector<Bytes> divideBudget(Bytes budget, std::span<const TableDemand> tables) {
  std::vector<Bytes> shares(tables.size());
  Bytes left = budget;
  for (size_t t = 0; t < tables.size(); ++t) {
    shares[t] = down(std::min({tables[t].least, tables[t].most, left}), tables[t].unit);
    left -= shares[t];
  }
  for (const Piece& piece : piecesOf(tables)) {
    const TableDemand& table = tables[piece.table];
    Bytes& share = shares[piece.table];
    const Bytes end = std::min(piece.end, table.most);
    if (end <= share) continue;
    const Bytes more = down(std::min(end - share, left), table.unit);
    share += more;
    left -= more;
  }
  return shares;
}

void giveOutRest(Bytes budget, std::span<const TableDemand> tables, std::span<Bytes> shares) {
  TP_CHECK_OP(tables.size(), ==, shares.size());
  Bytes left = budget;
  for (const Bytes share : shares) left -= std::min(left, share);
  // Water that rises: all below the level get to it, or to the most that they can use.
  const auto at = [&](size_t t, Bytes level) {
    return std::max(shares[t], std::min(level, tables[t].most));
  };
  const auto wanted = [&](Bytes level) {
    Bytes more;
    for (size_t t = 0; t < tables.size() && more <= left; ++t) more += at(t, level) - shares[t];
    return more;
  };
  Bytes level, beyond(1);  // the highest that there is enough for, to the byte
  for (const TableDemand& table : tables) beyond = std::max(beyond, table.most + Bytes(1));
  while (beyond - level > Bytes(1)) {
    const Bytes middle = level + (beyond - level) / 2;
    (wanted(middle) <= left ? level : beyond) = middle;
  }
  for (size_t t = 0; t < tables.size(); ++t) shares[t] = at(t, level);
}

double hitsOf(std::span<const TableDemand> tables, std::span<const Bytes> shares) {
  TP_CHECK_OP(tables.size(), ==, shares.size());
  double hits = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    hits += hitRatioAt(fromZero(tables[t].curve), shares[t]) * tables[t].lookups_a_second;
  }
  return hits;
}

bool BudgetShares::stillFit(Bytes budget, std::span<const TableDemand> tables) const {
  if (shares_.size() != tables.size()) return false;
  Bytes sum;
  for (size_t t = 0; t < tables.size(); ++t) {
    sum += shares_[t];
    if (shares_[t] < down(tables[t].least, tables[t].unit) || shares_[t] > tables[t].most) {
      return false;
    }
  }
  return sum <= budget;
}

const std::vector<Bytes>& BudgetShares::update(Bytes budget, std::span<const TableDemand> tables) {
  std::vector<Bytes> best = divideBudget(budget, tables);
  if (stillFit(budget, tables)) {
    double lookups = 0;
    for (const TableDemand& table : tables) lookups += table.lookups_a_second;
    const double now = hitsOf(tables, shares_);
    if (hitsOf(tables, best) - now <= kWorthMoving * (lookups - now)) return shares_;
  }
  shares_ = std::move(best);
  return shares_;
}

}  // namespace tidepool
