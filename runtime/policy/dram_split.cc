// SPDX-License-Identifier: Apache-2.0
// See the header for the idea.
#include "runtime/policy/dram_split.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// The giver must lose so much less than the taker gains. Then no step is taken back unless
// something has changed: what was gained by it is what giving it back would cost.
constexpr double kWorthMoving = 1.2;
constexpr double kDeviations = 2;    // of a count, which may be chance
constexpr uint64_t kEnough = 32;     // samples for an average
constexpr double kWeight = 1.0 / 4;  // of a window against all before
constexpr double kOutlier = 8;       // times the average: no window counts as more

}  // namespace

void DramSplit::Cost::average(Nanoseconds took, uint64_t count) {
  if (count < kEnough) return;
  const double now = static_cast<double>(took.value()) / static_cast<double>(count);
  ns = ns == 0 ? now : ns + kWeight * (std::min(now, kOutlier * ns) - ns);
}

void DramSplit::remember(const Window& seen) {
  fault_.average(seen.faulted, seen.near + seen.next);
  row_.average(seen.waited, seen.fetched);
  near_ = near_ / 2 + static_cast<double>(seen.near);
  next_ = next_ / 2 + static_cast<double>(seen.next);
  gained_ = gained_ / 2 + std::max(seen.gained, 0.0);
  lost_ = lost_ / 2 + std::max(seen.lost, 0.0);
}

DramSplit::Worth DramSplit::worth() const {
  return {.pages_more = near_ * fault_.ns,
          .pages_last = std::max(near_, 2 * near_ - next_) * fault_.ns,
          .doubt = kDeviations * std::sqrt(near_ + 1) * fault_.ns,
          .rows_more = gained_ * row_.ns,
          .rows_last = lost_ * row_.ns};
}

Bytes DramSplit::decide(const Window& seen, const Bounds& bounds) {
  TP_DCHECK(bounds.step > Bytes() && bounds.least <= bounds.most);
  // After a step pages that now stay return once.
  if (std::exchange(settling_, false)) return bounds.rows;
  remember(seen);
  if (row_.ns == 0) return bounds.rows;
  const Worth worth = this->worth();
  Bytes rows = bounds.rows;
  if (rest_ > 0) --rest_;
  if (rest_ == 0 && worth.rows_more > kWorthMoving * (worth.pages_last + worth.doubt)) {
    rows = std::max(rows, std::min(rows + bounds.step, bounds.most));
  } else if (worth.pages_more - worth.doubt > kWorthMoving * worth.rows_last) {
    rows = std::min(rows, std::max(rows - std::min(rows, bounds.step), bounds.least));
  }
  // A step at a time, since curves change.
  TP_DCHECK(rows <= bounds.rows + bounds.step && bounds.rows <= rows + bounds.step);
  if (rows != bounds.rows) moved(bounds.rows, rows);
  return rows;
}

void DramSplit::moved(Bytes from, Bytes to) {
  near_ = next_ = gained_ = lost_ = 0;
  const bool to_rows = to > from;
  // Two in a row that were not taken back: there is no cliff.
  if (to_rows && to_rows_) next_rest_ = kLeastRest;
  if (!to_rows && to_rows_) {
    rest_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, kMostRest);
  }
  to_rows_ = to_rows;
  settling_ = !to_rows;
}

}  // namespace tidepool
