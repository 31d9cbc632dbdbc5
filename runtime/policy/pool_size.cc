// SPDX-License-Identifier: Apache-2.0
// See the header for the idea.
#include "runtime/policy/pool_size.h"

#include <algorithm>

#include "runtime/base/debug_check.h"

namespace tidepool {
namespace {

// The two youngest and the two oldest sixteenths are what a step would take or give.
constexpr uint32_t kYoung = 1;
constexpr double kShareOfEnd = 8;
constexpr double kNextToNothing = 4;  // times less than local memory is worth
constexpr uint64_t kWeight = 32;      // of the average against one sample
constexpr uint64_t kOutlier = 8;      // times the average: no sample counts as more

constexpr auto kBack = static_cast<size_t>(PoolSize::Left::kWrittenBack);
constexpr auto kPassed = static_cast<size_t>(PoolSize::Left::kPassedBy);

double ns(Nanoseconds time) { return static_cast<double>(time.value()); }
double ofPages(PageCount pages) { return static_cast<double>(pages.value()); }
double share(uint64_t part, uint64_t of) {
  return of == 0 ? 0 : static_cast<double>(part) / static_cast<double>(of);
}

}  // namespace

void PoolSize::average(Nanoseconds& of, Nanoseconds sample) {
  const uint64_t now = of.value();
  const uint64_t counts = std::min(sample.value(), now * kOutlier);
  of = Nanoseconds(now + counts / kWeight - now / kWeight);
}

void PoolSize::onHit(uint32_t age) {
  TP_DCHECK_OP(age, <=, kOldest);
  ++wanted_;
  ++seen_.hits;
  seen_.young += age <= kYoung ? 1 : 0;
  seen_.old += age >= kOldest - kYoung ? 1 : 0;
}

void PoolSize::onLeft(PageIndex page, Left how) {
  const auto kind = static_cast<size_t>(how);
  unwanted_ += how == Left::kWrittenBack ? 1 : 0;
  ++seen_.left[kind];
  remembered_[kind][placeOf(page)] = static_cast<uint32_t>(page.value()) + 1;
}

void PoolSize::onFarFault(PageIndex page, std::optional<PageCount> away) {
  seen_.near += away && *away < seen_.step ? 1 : 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    uint32_t& place = remembered_[kind][placeOf(page)];
    if (place != static_cast<uint32_t>(page.value()) + 1) continue;
    place = 0;
    ++seen_.back[kind];
  }
}

void PoolSize::adjust(PageCount limit, PageCount held, PageCount entries) {
  if (target_ == PageCount()) target_ = limit / kMostShare;
  // The pool's pages have been replaced once, so that what was put in has had its chance.
  if (wanted_ + unwanted_ >= std::max(kEnoughLeft, entries.value())) judge();
  if (seen_.hits + seen_.back[0] + seen_.back[1] + seen_.near >= kEnough || resting_) {
    seen_.held = held;
    seen_.entries = entries;
    judgeClean(target_ > held ? target_ - held : PageCount());
    resize(limit);
    seen_ = {};
  }
  seen_.step = stepOf(limit);
  target_ = std::clamp(target_, leastOf(limit), limit / kMostShare);
}

void PoolSize::judge() {
  const double gained = static_cast<double>(wanted_) * ns(saved());
  // To compress what nobody wanted, and to decompress it again.
  const double spent = static_cast<double>(unwanted_) * ns(costs_.pack + costs_.hit);
  resting_ = gained < (resting_ ? 1.5 : 0.75) * spent;
  wanted_ = unwanted_ = 0;
}

void PoolSize::judgeClean(PageCount spare) {
  if (seen_.left[kPassed] == 0) return;
  TP_DCHECK_OP(seen_.young + seen_.old, <=, seen_.hits);
  const double returns = share(seen_.back[kPassed], seen_.left[kPassed]);
  // One that is taken pushes the oldest out, unless there is room to spare.
  const bool full = spare < PageCount(kEnough);
  const double lost = full ? share(seen_.back[kBack], seen_.left[kBack]) : 0;
  clean_pays_ = !resting_ && (returns - lost) * ns(saved()) > ns(costs_.pack);
}

PoolSize::Worth PoolSize::worthOf(const Window& window, const Costs& costs) {
  Worth worth;
  if (window.held == PageCount() || window.entries == PageCount()) return worth;
  const double entries = ofPages(window.entries);
  const double end = std::max(entries / kShareOfEnd, 1.0);
  const double saved = ns(costs.far) - ns(costs.hit);
  // As many pages more come into the pool's reach, after the one that is local no more.
  const double gained = std::max(entries / ofPages(window.held) - 1, 0.0) * saved;
  const double missed = ns(costs.hit + costs.pack + costs.fault);
  const double near = static_cast<double>(window.near) / std::max(ofPages(window.step), 1.0);
  worth.local =
      static_cast<double>(window.young) / end * missed + near * ns(costs.far + costs.fault);
  worth.last = static_cast<double>(window.old) / end * gained;
  worth.more = static_cast<double>(window.back[kBack]) / kRemembered * gained;
  return worth;
}

/// It has been turned over as it is a few times, and its oldest pages were next to never wanted:
/// what was put in once fills it, at the cost of what is used.
bool PoolSize::holdsWhatNobodyWants() {
  turns_.hits += seen_.hits;
  turns_.young += seen_.young;
  turns_.old += seen_.old;
  turns_.near += seen_.near;
  for (size_t kind = 0; kind < kKinds; ++kind) turns_.back[kind] += seen_.back[kind];
  if (turns_.hits < kTurns * std::max(kEnoughLeft, seen_.entries.value())) return false;
  turns_.step = seen_.step;
  turns_.held = seen_.held;
  turns_.entries = seen_.entries;
  const Worth worth = worthOf(turns_, costs_);
  turns_ = {};
  return kNextToNothing * std::max(worth.more, worth.last) < worth.local;
}

void PoolSize::resize(PageCount limit) {
  const PageCount step = stepOf(limit);
  const Worth worth = worthOf(seen_, costs_);
  // Of a pool that is not, the oldest pages tell what it did not have to give up.
  if (seen_.held + step < target_ && holdsWhatNobodyWants()) target_ = seen_.held + step;
  const bool full = seen_.held + step >= target_;
  if (resting_) {
    target_ = leastOf(limit);
  } else if (worth.more > 1.2 * worth.local) {
    target_ += step;
  } else if (full && std::max(worth.more, worth.last) < 0.8 * worth.local) {
    target_ -= std::min(step, target_ / 2);
  }
}

}  // namespace tidepool
