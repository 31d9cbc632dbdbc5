// SPDX-License-Identifier: Apache-2.0
// See the header for the idea.
#include "runtime/policy/pool_size.h"

#include <algorithm>

namespace tidepool {
namespace {

constexpr Nanoseconds kHitCost(12'000);  // of a fault that decompresses
constexpr Nanoseconds kVainCost(8'000);  // to compress and decompress what nobody wanted
// The two youngest and the two oldest sixteenths are what a step would take or give.
constexpr uint32_t kYoung = 1;
constexpr uint64_t kShareOfEnd = 8;

}  // namespace

void PoolSize::onHit(uint32_t age) {
  ++hits_;
  ++wanted_;
  young_ += age <= kYoung ? 1 : 0;
  old_ += age >= kOldest - kYoung ? 1 : 0;
}

void PoolSize::onWrittenBack(PageIndex page) {
  ++unwanted_;
  remember(page);
}

void PoolSize::remember(PageIndex page) {
  const uint64_t hash = hashOf(page);
  if ((hash & ((uint64_t{1} << sample_shift_) - 1)) != 0) return;
  remembered_[(hash >> sample_shift_) % kRemembered] = static_cast<uint32_t>(page.value()) + 1;
}

void PoolSize::onFarFault(PageIndex page) {
  uint32_t& place = remembered_[(hashOf(page) >> sample_shift_) % kRemembered];
  if (place != static_cast<uint32_t>(page.value()) + 1) return;
  place = 0;
  ++ghosts_;
}

void PoolSize::adjust(PageCount limit, PageCount held, PageCount entries) {
  if (target_ == PageCount()) target_ = limit / kMostShare;
  // The pool's pages have been replaced once, so that what was put in has had its chance.
  if (wanted_ + unwanted_ >= std::max(kEnoughLeft, entries.value())) judge();
  if (hits_ + ghosts_ >= kEnough || resting_) resize(limit, held, entries);
  target_ = std::clamp(target_, limit / kLeastShare, limit / kMostShare);
}

void PoolSize::judge() {
  const double gained = static_cast<double>(wanted_ * saved_.value());
  const double spent = static_cast<double>(unwanted_ * kVainCost.value());
  resting_ = gained < (resting_ ? 1.5 : 0.75) * spent;
  wanted_ = unwanted_ = 0;
}

void PoolSize::resize(PageCount limit, PageCount held, PageCount entries) {
  if (held == PageCount() || entries == PageCount()) return;
  const double end = static_cast<double>(std::max<uint64_t>(entries.value() / kShareOfEnd, 1));
  const double ratio = static_cast<double>(entries.value()) / static_cast<double>(held.value());
  const double saved = static_cast<double>(saved_.value());
  // By the page of memory: what it costs that it is not local as it is, and what it gains here.
  const double local = static_cast<double>(young_) / end * static_cast<double>(kHitCost.value());
  const double window = static_cast<double>(kRemembered << sample_shift_);
  const double more = ratio * static_cast<double>(ghosts_ << sample_shift_) / window * saved;
  const double last = ratio * static_cast<double>(old_) / end * saved;
  clean_pays_ = !resting_ && more > last;
  const PageCount step(std::max<uint64_t>((limit / kStepShare).value(), 1));
  if (resting_) {
    target_ = limit / kLeastShare;
  } else if (more > 1.2 * local) {
    target_ += step;
  } else if (std::max(more, last) < 0.8 * local && target_ > step) {
    target_ -= step;
  }
  hits_ = young_ = old_ = ghosts_ = 0;
}

}  // namespace tidepool
