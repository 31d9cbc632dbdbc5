// SPDX-License-Identifier: Apache-2.0
// What moves are worth, and the control loop of the watching window. See watching.h.
#include "runtime/policy/watching.h"

#include <algorithm>

#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// Pages seen in a window, as a share of those that fit locally. A page used three times in a
// window is missed in one of twenty; the rest is for cold pages seen by chance and bridged gaps.
constexpr double kSeenShare = 0.7;
constexpr double kShortest = 0.5e6;
constexpr double kLongest = 2e9;

// How long the present is believed to last.
constexpr double kHorizonNs = 10e9;
// A window this much shorter than the longest that pays: one that ends a little late does, too.
constexpr double kMargin = 0.9;

// A window that is much too long is dear, since every page seen in it is a fault: down fast.
constexpr double kLeastStep = 0.25;
constexpr double kMostStep = 1.3;
// Seen this much less or more than wanted, a window is as good as right.
constexpr double kFar = 0.6;

// Of the time for looks, what the kind gets that finds less.
constexpr double kLeastTime = 0.125;

// A share is that of so many independent looks lately, ...
constexpr double kRemembered = 32;
// ... but a batch counts no more than this, and one of few granules less.
constexpr double kMostWeight = 0.7;
constexpr double kFewGranules = 4;

}  // namespace

bool MoveWorth::pays(Nanoseconds window, double times) const {
  TP_DCHECK(window > Nanoseconds());
  const double uses = kHorizonNs / static_cast<double>(window.value());
  return uses * static_cast<double>(saved_by_use.value()) >
         static_cast<double>(cost.value()) * times;
}

Nanoseconds MoveWorth::longestWindow() const {
  // Where nothing is saved nothing will move, and looking is best done seldom.
  const double saved = static_cast<double>(saved_by_use.value());
  const double longest = kMargin * kHorizonNs * saved / static_cast<double>(cost.value());
  const double useful = saved > 0 ? std::clamp(longest, kShortest, kLongest) : kLongest;
  return Nanoseconds(static_cast<uint64_t>(useful));
}

void WatchWindow::Sample::add(uint64_t watched, uint64_t seen) {
  TP_DCHECK_OP(seen, <=, watched);
  if (watched == 0) return;
  watched_ += watched;
  seen_ += seen;
  ++granules_;
  squares_ += static_cast<double>(seen) * static_cast<double>(seen) / static_cast<double>(watched);
}

double WatchWindow::Sample::spread() const {
  return std::max(0.0, squares_ / static_cast<double>(watched_) - share() * share());
}

void WatchWindow::Share::observe(const Sample& sample) {
  if (sample.watched() == 0) return;
  const auto pages = static_cast<double>(sample.watched());
  const auto granules = static_cast<double>(sample.granules());
  const double now = sample.share();
  if (sample.granules() > 1) {
    between_ += (sample.spread() - between_) / 8;
    all_ += (now * (1 - now) * (granules - 1) / granules - all_) / 8;
  }
  // Pages of a granule tell as much as one where all are used alike (the intraclass correlation),
  // and each by itself where they are not.
  const double alike = all_ > 0 ? std::min(1.0, between_ / all_) : 0;
  const double independent = pages / (1 + (pages / granules - 1) * alike);
  share_ +=
      (now - share_) * std::min({kMostWeight, granules / kFewGranules, independent / kRemembered});
  TP_DCHECK(share_ >= 0 && share_ <= 1);
}

void WatchWindow::observe(Nanoseconds lasted, const Sample& far, const Sample& local,
                          const Sizes& sizes, Nanoseconds longest) {
  if (far.watched() + local.watched() == 0 || sizes.capacity == 0) return;
  const bool late = typical_ > 0 && ns(lasted) > 2 * typical_;
  typical_ += (ns(lasted) - typical_) * (typical_ > 0 ? 0.125 : 1);
  telling_ = false;
  if (late) return;
  far_.observe(far);
  local_.observe(local);
  const double pages = static_cast<double>(sizes.far_pages + sizes.local_pages);
  const double seen = far_.share() * static_cast<double>(sizes.far_pages) +
                      local_.share() * static_cast<double>(sizes.local_pages);
  const double wanted = std::min(kSeenShare * static_cast<double>(sizes.capacity), pages);
  const double right = wanted / std::max(seen, 1.0);
  telling_ = right > kFar;
  const double before = ns(length_);
  const double most = std::clamp(ns(longest), kShortest, kLongest);
  scarce_ = before >= most && right * kFar > 1;
  const double wish = std::clamp(right < kFar ? right : 0.5 + 0.5 * right, kLeastStep, kMostStep);
  length_ = Nanoseconds(static_cast<uint64_t>(std::clamp(before * wish, kShortest, most)));
  const double step = ns(length_) / before;
  // Cold pages will be seen more often or less often, hot ones not: what was watched shows which.
  const double about = (1 + step) / 2;
  far_.expect(far.watched() == 0 ? step : about);
  local_.expect(local.watched() == 0 ? step : about);
}

void LookShares::note(Kind kind, uint64_t misplaced, Nanoseconds cost) {
  Yield& yield = kind == Kind::kLocal ? local_ : far_;
  yield.found += (static_cast<double>(misplaced) - yield.found) / 8;
  yield.cost += (static_cast<double>(cost.value()) - yield.cost) / 8;
}

uint64_t LookShares::takeLocal(uint64_t looks) {
  const double local_cost = std::max(local_.cost, 1.0);
  const double far_cost = std::max(far_.cost, 1.0);
  const double local = local_.found / local_cost;
  const double far = far_.found / far_cost;
  const double time =
      std::clamp(local + far > 0 ? local / (local + far) : 0.5, kLeastTime, 1 - kLeastTime);
  const double share = time / local_cost / (time / local_cost + (1 - time) / far_cost);
  due_ += share * static_cast<double>(looks);
  const auto taken = static_cast<uint64_t>(std::clamp(due_ + 0.5, 0.0, static_cast<double>(looks)));
  due_ -= static_cast<double>(taken);
  TP_DCHECK(share >= 0 && share <= 1 && taken <= looks);
  return taken;
}

void PromotionBar::judge() {
  const bool raise = useful_ + wasted_ >= kEnough && wasted_ > useful_;
  height_ = raise ? std::min(height_ * 2, kHighest) : std::max(height_ / 2, 1.0);
  if (useful_ + wasted_ >= kEnough) useful_ = wasted_ = 0;
}

}  // namespace tidepool
