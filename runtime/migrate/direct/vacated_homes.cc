// SPDX-License-Identifier: Apache-2.0
// GranuleMover for homes that have to go: their tier is drained, or what lies there is lost.
#include <array>

#include "runtime/migrate/direct/access_watch.h"
#include "runtime/migrate/direct/granule_mover.h"
#include "runtime/os/memory.h"

namespace tidepool {

bool GranuleMover::closeToWriters(const GranuleLock& granule) {
  const PageIndex first = firstPage(granule);
  bool closed = true;
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex from, uint64_t count) {
    closed = closed && core_.barrier->writeProtect(core_.space->addressOf(from),
                                                   Bytes(count * kPageSize), Wake::kNo);
  });
  // A pin taken before is one that this sees; who would pin now waits.
  if (closed && !core_.mayPinPages()) return true;
  openToWriters(granule);
  return false;
}

void GranuleMover::openToWriters(const GranuleLock& granule) {
  const PageIndex first = firstPage(granule);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex from, uint64_t count) {
    [[maybe_unused]] const Status open = core_.barrier->writeProtect(
        core_.space->addressOf(from), Bytes(count * kPageSize), Wake::kYes);
  });
}

bool GranuleMover::vacate(const GranuleLock& granule, uint8_t tier) {
  const std::optional<Home> home = homeOf(granule);
  if (!home || home->tier != tier) return true;
  if (mapsWhole(*home)) return vacateWhole(granule, *home);
  if (core_.barrier == nullptr) return false;
  // Some of its pages may be local: what takes whole granules alone has no place for the others.
  if (const std::optional<Home> to = findHome(granule, Takes::kPages)) {
    // Frozen pages are closed already, and stay so for the others.
    if (frozen(*home) || closeToWriters(granule)) {
      moveHome(granule, *home, *to);
      return true;
    }
    core_.tiers.tier(to->tier).release({to->first, PageCount(kPagesPerGranule)});
    return false;
  }
  promoteAll(granule);
  bool left = false;
  const PageIndex first = firstPage(granule);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex, uint64_t) { left = true; });
  if (left) return false;
  forgetHome(granule);
  core_.tiers.tier(tier).release({home->first, PageCount(kPagesPerGranule)});
  return true;
}

void GranuleMover::promoteAll(const GranuleLock& granule) {
  std::array<Run, kPagesPerGranule / 2> runs;
  size_t count = 0;
  const PageIndex first = firstPage(granule);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex from, uint64_t pages) {
    runs[count++] = {from, pages};
  });
  promote(granule, {runs.data(), count}, beyondForOne());
}

GranuleMover::Beyond GranuleMover::beyondForOne() const {
  const bool leaves = core_.tiers.hasFetch() && core_.budget.room() > PageCount();
  return leaves ? Beyond::kOnce : Beyond::kNever;
}

bool GranuleMover::vacateWhole(const GranuleLock& granule, const Home& home) {
  // Looked at before a place is taken: that of a device is erased first.
  if (swap_ == nullptr || frozen(home) || core_.mayPinPages()) return false;
  const std::optional<Home> to = findHome(granule);
  if (!to) return promoteWhole(granule, beyondForOne());
  if (moveWhole(granule, home, *to)) return true;
  core_.tiers.tier(to->tier).release({to->first, PageCount(kPagesPerGranule)});
  return false;
}

void GranuleMover::forgetHome(const GranuleLock& granule) {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kLocal || !word.has(kFlagShadow)) continue;
    const auto kept = static_cast<uint8_t>(word.raw() & (kFlagProbed | kFlagUnproven));
    core_.space->change(granule, page, word, PageWord(PageState::kLocal, kept, 0, 0));
  }
}

uint64_t GranuleMover::lose(const GranuleLock& granule, uint8_t tier, FrameIndex from) {
  const std::optional<Home> home = homeOf(granule);
  if (!home || home->tier != tier || home->first < from) return 0;
  uint64_t lost = 0;
  const PageIndex first = firstPage(granule);
  MutexLock lock(staging_mutex_);
  forEachDirect(first, first + kPagesPerGranule, [&](PageIndex at, uint64_t count) {
    loseRun(granule, at, count);
    lost += count;
  });
  forgetHome(granule);
  core_.tiers.tier(tier).release({home->first, PageCount(kPagesPerGranule)});
  return lost;
}

void GranuleMover::loseRun(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  const uintptr_t address = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  const uintptr_t fill = staging_ + kGranuleSize;
  // Poisoned elsewhere and then put there: at no instant does anybody read zeros.
  const bool poisoned = core_.port->canPoison() && os::mapFresh(fill, size) &&
                        core_.port->arm(fill, size) && core_.port->poison(fill, size) &&
                        os::moveMapping(fill, address, size);
  if (poisoned) {
    TP_CHECK(core_.port->arm(address, size).has_value());
    restoreRights(core_, granule, address, size);
  } else {
    // The next clearest end: SIGSEGV.
    TP_CHECK(os::mapNothing(address, size).has_value());
  }
  for (uint64_t i = 0; i < pages; ++i) {
    const PageWord word = core_.space->word(first + i);
    TP_CHECK(core_.space->change(granule, first + i, word, PageWord(PageState::kLost, 0, 0, 0)));
  }
  if (core_.barrier != nullptr) core_.barrier->wake(address, size);
  core_.port->wake(address, size);
}

}  // namespace tidepool
