// SPDX-License-Identifier: Apache-2.0
// The pages leave the space, are copied to the tier, and the tier is mapped in their place.
#include "runtime/migrate/direct/demoter.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {

bool Demoter::placeFar(const GranuleLock& granule, PageIndex page) {
  const PageIndex first = firstPage(granule);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(first + i).state();
    if (state == PageState::kEvicting || state == PageState::kFetching ||
        state == PageState::kFar || state == PageState::kLost) {
      return false;
    }
  }
  const PageSet movable_pages = homes_.movablePages(granule);
  if (!movable_pages[page - first]) return false;
  std::optional<Home> home = homes_.of(granule);
  const bool fresh_home = !home.has_value();
  if (fresh_home) home = homes_.find(granule);
  if (!home || (!fresh_home && !homes_.own(granule, *home))) return false;
  if (homes_.mapsWhole(*home)) {
    const bool placed = fresh_home && whole_.place(granule, *home).has_value();
    if (fresh_home && !placed) homes_.releaseIfUnused(granule, *home);
    return placed;
  }
  for (uint64_t at = 0; at < kPagesPerGranule;) {
    const PageState state = core_.space->word(first + at).state();
    uint64_t run = 1;
    while (at + run < kPagesPerGranule && core_.space->word(first + at + run).state() == state &&
           movable_pages[at + run] == movable_pages[at]) {
      ++run;
    }
    if (!movable_pages[at]) {
      at += run;
      continue;
    }
    if (state == PageState::kEmpty || state == PageState::kZero) {
      // Frames are erased when they are released or their page is dropped, unless others still
      // held them then, or they were out of reach.
      DirectTier& tier = *core_.tiers.direct(home->tier);
      if (!fresh_home && (core_.fork.forked() || tier.wasSuspended())) {
        const Status erased = tier.erase({home->first + at, PageCount(run)});
        TP_CHECK(erased.has_value());
      }
      homes_.map(granule, first + at, run, *home);
    } else if (state == PageState::kLocal) {
      homes_.adopt(granule, *home);
      demoteMovable(granule, first + at, run);
    }
    at += run;
  }
  if (fresh_home) homes_.releaseIfUnused(granule, *home);
  return core_.space->word(page).state() == PageState::kDirect;
}

uint64_t Demoter::demote(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  if (homes_.movable(granule, first, pages)) return demoteMovable(granule, first, pages);
  const PageSet movable_pages = homes_.movablePages(granule);
  const uint64_t from = first.value() % kPagesPerGranule;
  uint64_t moved = 0;
  forRuns(movable_pages, [&](uint64_t start, uint64_t count) {
    const uint64_t end = std::min(start + count, from + pages);
    start = std::max(start, from);
    if (start < end) moved += demoteMovable(granule, first + (start - from), end - start);
  });
  return moved;
}

uint64_t Demoter::demoteMovable(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  TP_CHECK(granule.covers(first) && first + pages <= granule.end());
  std::optional<Home> home = homes_.of(granule);
  if (!home) {
    home = homes_.find(granule);
    if (!home) return 0;
    if (homes_.mapsWhole(*home)) {
      // Its other pages would have to go along, hot or not, and cannot come back.
      const std::optional<uint64_t> moved = placesOf(*core_.space, granule).local.count() <= pages
                                                ? whole_.place(granule, *home)
                                                : std::nullopt;
      if (!moved) homes_.releaseIfUnused(granule, *home);
      return moved.value_or(0);
    }
    homes_.adopt(granule, *home);
  } else if (!homes_.own(granule, *home)) {
    return 0;
  }
  DirectTier& tier = *core_.tiers.direct(home->tier);
  const uint64_t within = first.value() % kPagesPerGranule;
  MutexLock lock(transfer_.mutex());
  if (!transfer_.copyOut(granule, first, pages, tier.frameMemory(home->first + within)) ||
      !homes_.map(granule, first, pages, *home)) {
    transfer_.putBack(granule, first, pages);
    return 0;
  }
  transfer_.freeCopies(first, pages);
  core_.budget.discharge(PageCount(pages));
  transfer_.countMoved(core_.stats->demotions, core_.stats->demoted_bytes, pages);
  return pages;
}

}  // namespace tidepool
