// SPDX-License-Identifier: Apache-2.0
// Watching by moved page table entries, emptied ones, and write tracking. See access_watch.h.
#include "runtime/migrate/direct/access_watch.h"

#include "runtime/os/memory.h"

namespace tidepool {

Result<std::unique_ptr<AccessWatch>> AccessWatch::create(Core& core) {
  auto pagemap = os::openPagemap();
  if (!pagemap) return tl::unexpected(pagemap.error());
  auto area = Mapping::reserved(Bytes(kSlots * kGranuleSize), Bytes(kGranuleSize));
  if (!area) return tl::unexpected(area.error());
  return std::unique_ptr<AccessWatch>(new AccessWatch(core, std::move(*area), std::move(*pagemap)));
}

uint64_t AccessWatch::open(size_t slot, const GranuleLock& granule, const Places& wanted) {
  TP_CHECK_OP(slot, <, kSlots);
  Slot& at = slots_[slot];
  at = {granule, {}, {}, wanted.local, 0, FrameIndex(0)};
  const PageIndex first = firstPage(granule);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    // Armed since it came, so that a write shows its far copy to be old: once more would hide that.
    if (at.armed[i] && core_.space->word(first + i).has(kFlagFarCopy)) at.armed.reset(i);
  }
  forRuns(wanted.direct, [&](uint64_t page, uint64_t count) {
    const PageWord word = core_.space->word(first + page);
    at.tier = word.tier();
    at.home = word.frame() - page;
    if (core_.tiers.tier(at.tier).suspended()) return;  // nobody uses it
    const bool hides = count >= kLeastHidden && !heldByOthers(core_, at.tier, at.home);
    PageSet& how = hides && hide(slot, page, count) ? at.hidden : at.zapped;
    for (uint64_t i = 0; i < count; ++i) how.set(page + i);
  });
  const uint64_t faults = at.zapped.any() ? found(Scan::kPresent, granule, at.zapped).count() : 0;
  forRuns(at.zapped, [&](uint64_t page, uint64_t count) {
    core_.kernel->zapShared(core_.space->addressOf(first + page), Bytes(count * kPageSize));
  });
  forRuns(at.armed, [&](uint64_t page, uint64_t count) {
    [[maybe_unused]] const Status armed = core_.port->writeProtect(
        core_.space->addressOf(first + page), Bytes(count * kPageSize), Wake::kNo);
  });
  return faults;
}

AccessWatch::Seen AccessWatch::close(size_t slot, const GranuleLock& granule) {
  const Slot& at = slots_[slot];
  TP_CHECK(at.granule == granule);
  const Places now = placesOf(*core_.space, at.granule);
  Seen result;
  result.watched.local = at.armed & now.local;
  result.watched.direct = (at.hidden | at.zapped) & now.direct;
  if (result.watched.direct.any())
    result.seen |= found(Scan::kPresent, at.granule, result.watched.direct);
  if (result.watched.local.any())
    result.seen |= found(Scan::kWritten, at.granule, result.watched.local);
  forRuns(at.hidden, [&](uint64_t page, uint64_t count) {
    if (unhide(slot, granule, page, count)) return;
    for (uint64_t i = 0; i < count; ++i) result.watched.direct.reset(page + i);
  });
  result.seen &= result.watched.direct | result.watched.local;
  return result;
}

void AccessWatch::forgetMappings() {
  [[maybe_unused]] const Status gone =
      core_.kernel->mapUnused(aside(0, 0), Bytes(kSlots * kGranuleSize));
}

bool AccessWatch::hide(size_t slot, uint64_t first, uint64_t count) {
  const uintptr_t address = core_.space->addressOf(firstPage(slots_[slot].granule) + first);
  const Bytes size(count * kPageSize);
  // The mapping stays behind, empty, and still armed: a touch finds the same frame by a fault.
  if (!core_.space->addresses().plain(address, size)) return false;
  if (!core_.kernel->moveMapping(address, aside(slot, first), size)) return false;
  // A core dump reads the same frames by the mapping that stays behind: once is enough.
  core_.kernel->leaveOutOfDumps(aside(slot, first), size);
  return true;
}

void AccessWatch::dumpAsAsked(uintptr_t address, Bytes size) {
  const uintptr_t end = address + size.value();
  for (uintptr_t at = address; at < end;) {
    const RangeSpan span = core_.space->addresses().markedAt(Mark::kUndumped, at, Bytes(end - at));
    if (!span.inside) core_.kernel->includeInDumps(at, span.size);
    at += span.size.value();
  }
}

bool AccessWatch::unhide(size_t slot, const GranuleLock& granule, uint64_t first, uint64_t count) {
  const Slot& at = slots_[slot];
  const PageIndex page = firstPage(at.granule) + first;
  const uintptr_t address = core_.space->addressOf(page);
  const Bytes size(count * kPageSize);
  // Only over what it was taken from: the program may have released, discarded or protected it.
  bool same = core_.space->addresses().plain(address, size);
  for (uint64_t i = 0; same && i < count; ++i) {
    const PageWord word = core_.space->word(page + i);
    same = word.state() == PageState::kDirect && word.tier() == at.tier &&
           word.frame() == at.home + (first + i);
  }
  // Nor may it replace write-protected pages: a fork() since then has frozen them. Asked of a home
  // that is still the granule's: others may be nobody's.
  same = same && !core_.tiers.tier(at.tier).suspended() && !heldByOthers(core_, at.tier, at.home);
  if (same && !core_.kernel->moveMapping(aside(slot, first), address, size)) {
    // The move may have emptied the place before it failed.
    same = false;
    const FrameRun run{at.home + first, PageCount(count)};
    const Status mapped =
        core_.tiers.direct(at.tier)->mapFrames(run, reinterpret_cast<void*>(address));
    TP_CHECK(mapped.has_value());
    restoreDumpAdvice(core_, granule, address, size);
    [[maybe_unused]] const Status gone = core_.kernel->mapUnused(aside(slot, first), size);
    [[maybe_unused]] const Status armed = core_.barrier->arm(address, size);
    return false;
  }
  if (!same) {
    [[maybe_unused]] const Status gone = core_.kernel->mapUnused(aside(slot, first), size);
    return false;
  }
  dumpAsAsked(address, size);
  // A moved mapping is no longer armed. Without it the pages are merely not promoted.
  [[maybe_unused]] const Status armed = core_.barrier->arm(address, size);
  // What is left behind shows the same frames, or what becomes of them.
  core_.kernel->leaveOutOfDumps(aside(slot, first), size);
  return true;
}

}  // namespace tidepool
