// SPDX-License-Identifier: Apache-2.0
// GranuleMover for homes that several processes hold after a fork(): frozen for all of them, and
// thawed by whoever writes.
#include <cstring>

#include "runtime/migrate/direct/granule_mover.h"

namespace tidepool {

bool GranuleMover::frozen(uint8_t tier, FrameIndex home) const {
  return heldByOthers(core_, tier, home);
}

Status GranuleMover::freeze() {
  Status done;
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  for (GranuleIndex granule; (granule = core_.space->nextWithPages(granule, end)) < end;
       ++granule) {
    const PageIndex from = firstPage(granule);
    forEachDirect(from, from + kPagesPerGranule, [&](PageIndex first, uint64_t count) {
      const uintptr_t address = core_.space->addressOf(first);
      if (done) done = core_.barrier->writeProtect(address, Bytes(count * kPageSize), Wake::kNo);
    });
  }
  return done;
}

bool GranuleMover::thaw(const GranuleLock& granule, PageIndex page) {
  const PageIndex first = firstPage(granule);
  std::optional<Home> home = homeOf(granule);
  if (!home || core_.space->word(page).state() != PageState::kDirect) return true;
  // A child that has called exec, as most do, needs no copy.
  if (FrameTable* table = core_.tiers.tier(home->tier).frames()) table->reap();
  if (frozen(*home)) {
    // Without room for a copy of the granule: the page at least.
    return ownHome(granule, *home) || !bringIn(granule, page);
  }
  spoil(granule);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex from, uint64_t count) {
    [[maybe_unused]] const Status open = core_.barrier->writeProtect(
        core_.space->addressOf(from), Bytes(count * kPageSize), Wake::kYes);
  });
  return true;
}

bool GranuleMover::bringIn(const GranuleLock& granule, PageIndex page) {
  if (core_.space->word(page).state() != PageState::kDirect) return true;
  if (core_.barrier == nullptr || !movable(granule, page, 1)) return false;
  spoil(granule);
  MutexLock lock(staging_mutex_);
  const uintptr_t address = core_.space->addressOf(page);
  if (!core_.barrier->writeProtect(address, Bytes(kPageSize), Wake::kNo)) return false;
  core_.budget.charge(PageCount(1));
  if (swapIn(granule, {page, 1})) return true;
  core_.budget.discharge(PageCount(1));
  return false;
}

bool GranuleMover::ownHome(const GranuleLock& granule, Home& home) {
  if (!frozen(home)) return true;
  const std::optional<Home> own = findHome(granule, Takes::kPages);
  if (!own) return false;
  moveHome(granule, home, *own);
  home = *own;
  return true;
}

void GranuleMover::moveHome(const GranuleLock& granule, const Home& home, const Home& to) {
  const PageIndex first = firstPage(granule);
  const DirectTier& from_tier = *core_.tiers.direct(home.tier);
  const DirectTier& to_tier = *core_.tiers.direct(to.tier);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex from, uint64_t count) {
    const uint64_t within = from - first;
    memcpy(to_tier.frameMemory(to.first + within), from_tier.frameMemory(home.first + within),
           count * kPageSize);
    // Replaces a mapping by one of the same extent, which the kernel has room for.
    TP_CHECK(mapHome(granule, from, count, to));
    restoreRights(core_, granule, core_.space->addressOf(from), Bytes(count * kPageSize));
    core_.barrier->wake(core_.space->addressOf(from), Bytes(count * kPageSize));
  });
  adopt(granule, to);
  core_.tiers.tier(home.tier).release({home.first, PageCount(kPagesPerGranule)});
}

}  // namespace tidepool
