// SPDX-License-Identifier: Apache-2.0
// A pass over all granules, in pieces. See heat_sweeper.h.
#include "runtime/migrate/heat_sweeper.h"

#include <algorithm>

#include "runtime/base/clock.h"

namespace tidepool {
namespace {

// Between the beginnings of two passes; a process of more than some GiB takes longer for one.
constexpr Nanoseconds kEvery(1'000'000'000);
// A granule takes some microseconds: less than a thousandth of a core.
constexpr uint64_t kLooksATick = 8;
// Granules without pages are passed over by a counter each.
constexpr uint64_t kPassedATick = 16'384;
// Far pages that left before this share of local memory was replaced are as cold as the rest: that
// is when the rule of eviction forgets them as well.
constexpr uint64_t kForgottenShare = 8;

}  // namespace

void HeatSweeper::tick(Nanoseconds now, const Balancer* balancer) {
  if (!sweeping_) {
    if (now < next_) return;
    sweeping_ = true;
    next_ = now + kEvery;
    hand_ = GranuleIndex();
    map_->clear();
    map_->begun = now;
  }
  const Nanoseconds start = threadCpuTime();
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  const GranuleIndex stop = std::min(end, hand_ + kPassedATick);
  for (uint64_t looks = 0; looks < kLooksATick && hand_ < stop; ++looks) {
    hand_ = core_.space->nextWithPages(hand_, stop);
    if (hand_ == stop) break;
    look(hand_, now, balancer);
    ++hand_;
  }
  map_->cpu += threadCpuTime() - start;
  if (hand_ < end) return;
  sweeping_ = false;
  map_->ended = now;
  page_.write(*map_);
}

void HeatSweeper::look(GranuleIndex granule, Nanoseconds now, const Balancer* balancer) {
  const PageIndex first = firstPage(granule);
  PageHeat alike{};
  uint64_t run = 0;  // pages alike before `at`
  const auto addRun = [&](uint64_t at) {
    if (run > 0) map_->add(core_.space->addressOf(first + (at - run)), alike, run);
    run = 0;
  };
  MutexLock lock(policy_.mutex());
  for (uint64_t at = 0; at < kPagesPerGranule; ++at) {
    const PageWord word = core_.space->word(first + at);
    if (word.state() == PageState::kEmpty) {
      addRun(at);
      continue;
    }
    const PageHeat page = heatOf(first + at, word, now, balancer);
    if (!(page == alike)) addRun(at);
    alike = page;
    ++run;
  }
  addRun(kPagesPerGranule);
}

PageHeat HeatSweeper::heatOf(PageIndex page, PageWord word, Nanoseconds now,
                             const Balancer* balancer) {
  const HeatPlace place = placeOf(word);
  const GranuleIndex granule = granuleOf(page);
  const VictimChooser& chooser = policy_.chooser();
  if (word.state() == PageState::kLocal || word.state() == PageState::kDirect) {
    const PageScore score = balancer != nullptr ? balancer->score(page) : PageScore();
    if (score.known()) return {place, score.heat(), balancer->lookedAt(granule)};
    const bool chosen = word.state() == PageState::kLocal && core_.tiers.hasFetch();
    if (!chosen) return {place, 0, Nanoseconds()};
    // One more than what is far: it was touched since, or has been kept.
    const uint32_t heat = std::min<uint32_t>(chooser.score(page) + 1, kMostHeat);
    return {place, static_cast<uint8_t>(heat), policy_.looks().of(granule)};
  }
  // A touch of what is absent would be a fault: that there was none is known for certain.
  const PageCount away = chooser.evictedSince(page).value_or(core_.budget.limit());
  const bool recent = away.value() * kForgottenShare < core_.budget.limit().value();
  return {place, static_cast<uint8_t>(recent ? chooser.score(page) : 0), now};
}

HeatPlace HeatSweeper::placeOf(PageWord word) const {
  switch (word.state()) {
    case PageState::kDirect:
      return HeatPlace::kDirect;
    case PageState::kFar:
    case PageState::kFetching: {
      const bool packed = core_.pool != nullptr && word.tier() == core_.pool_number;
      return packed ? HeatPlace::kCompressed : HeatPlace::kFetch;
    }
    case PageState::kZero:
      return HeatPlace::kZero;
    case PageState::kLost:
      return HeatPlace::kLost;
    default:  // kEvicting, too: it still is in local memory
      return HeatPlace::kLocal;
  }
}

}  // namespace tidepool
