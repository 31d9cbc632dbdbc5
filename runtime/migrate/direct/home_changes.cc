// SPDX-License-Identifier: Apache-2.0
// A home moves with its pages' writers held up, so that the copy is what it was; what is lost is
// replaced in one step.
#include "runtime/migrate/direct/home_changes.h"

#include <array>

namespace tidepool {

Status HomeChanges::freeze() {
  Status done;
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  for (GranuleIndex granule; (granule = core_.space->nextWithPages(granule, end)) < end;
       ++granule) {
    forEachDirect(*core_.space, granule, [&](PageIndex first, uint64_t count) {
      const uintptr_t address = core_.space->addressOf(first);
      if (done) done = core_.barrier->writeProtect(address, Bytes(count * kPageSize), Wake::kNo);
    });
  }
  return done;
}

bool HomeChanges::thaw(const GranuleLock& granule, PageIndex page) {
  std::optional<Home> home = homes_.of(granule);
  if (!home || core_.space->word(page).state() != PageState::kDirect) return true;
  // A child that has called exec, as most do, needs no copy.
  if (FrameTable* table = core_.tiers.tier(home->tier).frames()) table->reap();
  if (homes_.frozen(*home)) {
    // Without room for a copy of the granule: the page at least.
    return homes_.own(granule, *home) || !promoter_.bringIn(granule, page);
  }
  closing_.spoil(granule);
  homes_.openToWriters(granule.first(), granule.end());
  return true;
}

void HomeChanges::suspend(uint32_t tiers) {
  const auto concerns = [tiers](uint8_t number) { return (tiers >> number & 1) != 0; };
  core_.tiers.forEach([&](uint8_t number, Tier& tier) {
    if (concerns(number)) tier.suspend();
  });
  closing_.spoilAll();
  MutexLock lock(transfer_.mutex());
  // What lies side by side may be one mapping, of which a part needs a map entry more.
  uintptr_t from = 0, to = 0;
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  for (GranuleIndex granule; (granule = core_.space->nextWithPages(granule, end)) < end;
       ++granule) {
    forEachDirect(*core_.space, granule, [&](PageIndex first, uint64_t count) TP_LOCKS_OF_CALLER {
      const uint8_t number = core_.space->word(first).tier();
      if (!concerns(number)) return;
      if (core_.tiers.direct(number)->mapUnit() > PageCount(1)) return whole_.suspend(granule);
      const uintptr_t address = core_.space->addressOf(first);
      if (address != to) {
        hold(from, Bytes(to - from));
        from = address;
      }
      to = address + count * kPageSize;
    });
  }
  hold(from, Bytes(to - from));
}

void HomeChanges::hold(uintptr_t address, Bytes size) {
  if (size == Bytes()) return;
  const Status held = core_.barrier == nullptr
                          ? Status(fail(ErrorCode::kUnsupported, "no write barrier"))
                          : core_.barrier->hold(address, size);
  // Armed first: what is taken out of the page table stays out.
  if (held) return core_.kernel->zapShared(address, size);
  // On older kernels a touch ends in SIGSEGV.
  TP_CHECK(held.error().code() == ErrorCode::kUnsupported);
  TP_CHECK(core_.kernel->mapNothing(address, size).has_value());
}

void HomeChanges::resume(uint32_t tiers) {
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  for (GranuleIndex index; (index = core_.space->nextWithPages(index, end)) < end; ++index) {
    const GranuleLock granule(*core_.space, index);
    const std::optional<Home> home = homes_.of(granule);
    if (home && (tiers >> home->tier & 1) != 0) mapAgain(granule, *home);
  }
  core_.tiers.forEach([&](uint8_t number, Tier& tier) {
    if ((tiers >> number & 1) != 0) tier.resume();
  });
  if (core_.barrier == nullptr) return;
  core_.barrier->wake(core_.space->base(), toBytes(PageCount(firstPage(end).value())));
}

/// What could not be held in place.
void HomeChanges::mapAgain(const GranuleLock& granule, const Home& home) {
  if (homes_.mapsWhole(home)) return whole_.resume(granule, home);
  if (core_.barrier != nullptr) return;
  forEachDirect(*core_.space, granule, [&](PageIndex first, uint64_t count) {
    const uintptr_t address = core_.space->addressOf(first);
    const FrameRun run{core_.space->word(first).frame(), PageCount(count)};
    TP_CHECK(core_.tiers.direct(home.tier)
                 ->mapFrames(run, reinterpret_cast<void*>(address))
                 .has_value());
    restoreRights(core_, granule, address, toBytes(run.count));
    restoreDumpAdvice(core_, granule, address, toBytes(run.count));
  });
}

void HomeChanges::admit(const GranuleLock& granule, PageIndex page) {
  std::optional<Home> home = homes_.of(granule);
  if (!home || core_.space->word(page).state() != PageState::kDirect) return;
  if (!homes_.frozen(*home)) {
    forEachDirect(*core_.space, granule, [&](PageIndex first, uint64_t count) {
      const uintptr_t address = core_.space->addressOf(first);
      // Without it each page of them comes here.
      if (!core_.barrier->disarm(address, Bytes(count * kPageSize))) return;
      [[maybe_unused]] const Status armed = core_.barrier->arm(address, Bytes(count * kPageSize));
      core_.barrier->wake(address, Bytes(count * kPageSize));
    });
    return;
  }
  // Armed anew it would be open to writers for an instant. Where the kernel cannot put a single
  // page there that is not, the granule gets a home of its own, or the page comes in.
  if (core_.barrier->admit(core_.space->addressOf(page)) || homes_.own(granule, *home)) return;
  promoter_.bringIn(granule, page);
}

bool HomeChanges::closeToWriters(const GranuleLock& granule) {
  bool closed = true;
  forEachDirect(*core_.space, granule, [&](PageIndex from, uint64_t count) {
    closed = closed && core_.barrier->writeProtect(core_.space->addressOf(from),
                                                   Bytes(count * kPageSize), Wake::kNo);
  });
  // A pin taken before is one that this sees; who would pin now waits.
  if (closed && !core_.mayPinPages()) return true;
  homes_.openToWriters(granule.first(), granule.end());
  return false;
}

bool HomeChanges::vacate(const GranuleLock& granule, uint8_t tier) {
  const std::optional<Home> home = homes_.of(granule);
  if (!home || home->tier != tier) return true;
  if (homes_.suspended(*home)) return false;
  if (homes_.mapsWhole(*home)) return vacateWhole(granule, *home);
  if (core_.barrier == nullptr) return false;
  // Some of its pages may be local: what takes whole granules alone has no place for the others.
  if (const std::optional<Home> to = homes_.find(granule, GranuleHomes::Takes::kPages)) {
    // Frozen pages are closed already, and stay so for the others.
    if (homes_.frozen(*home) || closeToWriters(granule)) {
      homes_.move(granule, *home, *to);
      return true;
    }
    homes_.release(*to);
    return false;
  }
  promoteAll(granule);
  if (placesOf(*core_.space, granule).direct.any()) return false;
  homes_.forget(granule);
  homes_.release(*home);
  return true;
}

void HomeChanges::promoteAll(const GranuleLock& granule) {
  std::array<Promoter::Run, kPagesPerGranule / 2> runs;
  size_t count = 0;
  forEachDirect(*core_.space, granule, [&](PageIndex from, uint64_t pages) {
    runs[count++] = {from, pages};
  });
  promoter_.promote(granule, {runs.data(), count}, beyondForOne());
}

Budget::Beyond HomeChanges::beyondForOne() const {
  const bool leaves = core_.tiers.hasFetch() && core_.budget.room() > PageCount();
  return leaves ? Budget::Beyond::kOnce : Budget::Beyond::kNever;
}

bool HomeChanges::vacateWhole(const GranuleLock& granule, const Home& home) {
  // Looked at before a place is taken: that of a device is erased first.
  if (!whole_.canPromote() || homes_.frozen(home) || core_.mayPinPages()) return false;
  const std::optional<Home> to = homes_.find(granule);
  if (!to) return whole_.promote(granule, beyondForOne());
  if (whole_.move(granule, home, *to)) return true;
  homes_.release(*to);
  return false;
}

uint64_t HomeChanges::lose(const GranuleLock& granule, uint8_t tier, FrameIndex from) {
  const std::optional<Home> home = homes_.of(granule);
  if (!home || home->tier != tier || home->first < from) return 0;
  uint64_t lost = 0;
  MutexLock lock(transfer_.mutex());
  forEachDirect(*core_.space, granule, [&](PageIndex at, uint64_t count) TP_LOCKS_OF_CALLER {
    transfer_.poison(granule, at, count);
    lost += count;
  });
  if (homes_.mapsWhole(*home)) whole_.wake(core_.space->addressOf(granule), Bytes(kGranuleSize));
  homes_.forget(granule);
  homes_.release(*home);
  return lost;
}

}  // namespace tidepool
