// SPDX-License-Identifier: Apache-2.0
// GranuleMover for tiers that are mapped in whole granules (device-DAX): all pages of a granule go
// there in one step, local ones and those that were never touched, or none does; and so they come
// back.
#include <cstring>

#include "runtime/migrate/direct/access_watch.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/os/memory.h"

namespace tidepool {

bool GranuleMover::mapsWholeGranules() const {
  bool any = false;
  core_.tiers.forEach([&](uint8_t number, Tier&) {
    const DirectTier* tier = core_.tiers.direct(number);
    any = any || (tier != nullptr && tier->mapUnit() > PageCount(1));
  });
  return any;
}

bool GranuleMover::liesWhole(const GranuleLock& granule) const {
  const std::optional<Home> home = homeOf(granule);
  return home && mapsWhole(*home);
}

std::optional<uint64_t> GranuleMover::placeWhole(const GranuleLock& granule, const Home& home) {
  const PageIndex first = firstPage(granule);
  if (!movable(granule, first, kPagesPerGranule)) return std::nullopt;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(first + i).state();
    if (state != PageState::kLocal && state != PageState::kEmpty) return std::nullopt;
  }
  const PageSet local = placesOf(*core_.space, granule).local;
  std::byte* const to = core_.tiers.direct(home.tier)->frameMemory(home.first);
  MutexLock lock(staging_mutex_);
  uint64_t aside = 0;  // pages before this one are out of the space
  bool whole = true;
  forRuns(local, [&](uint64_t at, uint64_t count) TP_NO_THREAD_SAFETY {
    if (!whole) return;
    whole = copyOut(granule, first + at, count, to + at * kPageSize);
    aside = at + count;
  });
  // The far copy of a page whose word is about to name another place.
  for (uint64_t i = 0; whole && i < kPagesPerGranule; ++i) {
    if (local[i]) dropFarCopy(core_, granule, first + i, core_.space->word(first + i));
  }
  if (!whole || !mapHome(granule, first, kPagesPerGranule, home)) {
    forRuns(local, [&](uint64_t at, uint64_t count) TP_NO_THREAD_SAFETY {
      if (at < aside) putBack(granule, first + at, count);
    });
    return std::nullopt;
  }
  if (core_.port->canMove()) {
    [[maybe_unused]] const Status freed = os::discard(staging_, Bytes(kGranuleSize));
  }
  core_.budget.discharge(PageCount(local.count()));
  countMoved(core_.stats->demotions, core_.stats->demoted_bytes, local.count());
  return local.count();
}

bool GranuleMover::takeWhole(const GranuleLock& granule, const Home& home) {
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  // From here on nobody uses it. A device that was given pages of it before still may: its
  // descriptor shows.
  if (swap_->take(address, size, staging_ + kGranuleSize)) {
    if (!core_.mayPinPages()) return true;
    count(core_.stats->promotions_held_by_pins, kPagesPerGranule);
  }
  // Replaces a mapping by one of the same extent, which the kernel has room for.
  const FrameRun run{home.first, PageCount(kPagesPerGranule)};
  DirectTier& tier = *core_.tiers.direct(home.tier);
  TP_CHECK(tier.mapFrames(run, reinterpret_cast<void*>(address)).has_value());
  restoreRights(core_, granule, address, size);
  restoreDumpAdvice(core_, granule, address, size);
  swap_->letGo(address, size);
  return false;
}

bool GranuleMover::promoteWhole(const GranuleLock& granule, Beyond beyond) {
  const std::optional<Home> home = homeOf(granule);
  const PageIndex first = firstPage(granule);
  if (swap_ == nullptr || !home || !mapsWhole(*home) || frozen(*home)) return false;
  if (!movable(granule, first, kPagesPerGranule)) return false;
  if (!charge(PageCount(kPagesPerGranule), beyond)) return false;
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  DirectTier& tier = *core_.tiers.direct(home->tier);
  MutexLock lock(staging_mutex_);
  if (!takeWhole(granule, *home)) {
    core_.budget.discharge(PageCount(kPagesPerGranule));
    return false;
  }
  restoreDumpAdvice(core_, granule, address, size);
  swap_->fill(address, size, tier.frameMemory(home->first));
  // The mapping is the granule's own, so that arming it needs nothing that could be refused.
  TP_CHECK(core_.port->arm(address, size).has_value());
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageWord word = core_.space->word(first + i);
    TP_CHECK(core_.space->change(granule, first + i, word, PageWord(PageState::kLocal, 0, 0, 0)));
  }
  tier.release({home->first, PageCount(kPagesPerGranule)});
  countMoved(core_.stats->promotions, core_.stats->promoted_bytes, kPagesPerGranule);
  return true;
}

bool GranuleMover::movesWhole(const GranuleLock& granule, const Home& to) const {
  const PageIndex first = firstPage(granule);
  if (!mapsWhole(to)) return movable(granule, first, kPagesPerGranule);
  // Rights of parts cannot be given to what is mapped whole. What the program has given back of it
  // is still mapped, and goes along.
  const uintptr_t start = core_.space->addressOf(granule);
  const uintptr_t end = start + kGranuleSize;
  for (uintptr_t at = start; at < end;) {
    const ProtectionSpan span = core_.space->protections().spanAt(at, Bytes(end - at));
    const bool all = span.size == Bytes(kGranuleSize);
    if (!all && span.protection != kNotHandedOut &&
        rightsOf(span.protection) != Rights::kReadWrite) {
      return false;
    }
    at += span.size.value();
  }
  return !core_.space->anchored().any(first, kPagesPerGranule);
}

bool GranuleMover::moveWhole(const GranuleLock& granule, const Home& home, const Home& to) {
  if (!movesWhole(granule, to)) return false;
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  MutexLock lock(staging_mutex_);
  if (!takeWhole(granule, home)) return false;
  memcpy(core_.tiers.direct(to.tier)->frameMemory(to.first),
         core_.tiers.direct(home.tier)->frameMemory(home.first), kGranuleSize);
  // Replaces a mapping by one of the same extent, which the kernel has room for.
  TP_CHECK(mapHome(granule, firstPage(granule), kPagesPerGranule, to));
  restoreRights(core_, granule, address, size);
  swap_->letGo(address, size);
  core_.tiers.tier(home.tier).release({home.first, PageCount(kPagesPerGranule)});
  return true;
}

}  // namespace tidepool
