// SPDX-License-Identifier: Apache-2.0
// All pages of a granule go there in one step, local ones and those that hold nothing, or none
// does; and so they come back.
#include "runtime/migrate/direct/whole_granules.h"

#include <cstring>

#include "runtime/os/memory.h"

namespace tidepool {

void WholeGranules::tierCame() {
  if (swap_ != nullptr || !homes_.anyMapsWhole()) return;
  // Without it granules merely stay in the tier.
  if (auto swap = os::MappingSwap::open()) swap_ = std::move(*swap);
}

void WholeGranules::renew() {
  if (swap_ != nullptr) swap_->forgetThread();
  swap_.reset();
}

std::optional<uint64_t> WholeGranules::place(const GranuleLock& granule, const Home& home) {
  const PageIndex first = firstPage(granule);
  if (!homes_.movable(granule, first, kPagesPerGranule)) return std::nullopt;
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(first + i).state();
    if (state != PageState::kLocal && state != PageState::kEmpty && state != PageState::kZero) {
      return std::nullopt;
    }
  }
  TP_CHECK(homes_.mapsWhole(home) && home.first.value() % kPagesPerGranule == 0);
  const PageSet local = placesOf(*core_.space, granule).local;
  std::byte* const to = core_.tiers.direct(home.tier)->frameMemory(home.first);
  MutexLock lock(transfer_.mutex());
  uint64_t aside = 0;  // pages before this one are out of the space
  bool whole = true;
  forRuns(local, [&](uint64_t at, uint64_t count) TP_LOCKS_OF_CALLER {
    if (!whole) return;
    whole = transfer_.copyOut(granule, first + at, count, to + at * kPageSize);
    aside = at + count;
  });
  // The far copy of a page whose word is about to name another place.
  for (uint64_t i = 0; whole && i < kPagesPerGranule; ++i) {
    if (local[i]) dropFarCopy(core_, granule, first + i, core_.space->word(first + i));
  }
  if (!whole || !homes_.map(granule, first, kPagesPerGranule, home)) {
    forRuns(local, [&](uint64_t at, uint64_t count) TP_LOCKS_OF_CALLER {
      if (at < aside) transfer_.putBack(granule, first + at, count);
    });
    return std::nullopt;
  }
  transfer_.freeCopies(first, kPagesPerGranule);
  core_.budget.discharge(PageCount(local.count()));
  transfer_.countMoved(core_.stats->demotions, core_.stats->demoted_bytes, local.count());
  return local.count();
}

bool WholeGranules::take(const GranuleLock& granule, const Home& home) {
  TP_CHECK(swap_ != nullptr);
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  // From here on nobody uses it. A device that was given pages of it before still may: its
  // descriptor shows.
  if (swap_->take(address, size, transfer_.fillAddress())) {
    if (!core_.mayPinPages()) return true;
    count(core_.stats->promotions_held_by_pins, kPagesPerGranule);
  }
  resume(granule, home);
  return false;
}

void WholeGranules::suspend(GranuleIndex granule) {
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  if (swap_ != nullptr && swap_->take(address, size, transfer_.fillAddress())) return;
  TP_CHECK(core_.kernel->mapNothing(address, size).has_value());
}

void WholeGranules::resume(const GranuleLock& granule, const Home& home) {
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  // Replaces a mapping by one of the same extent, which the kernel has room for.
  DirectTier& tier = *core_.tiers.direct(home.tier);
  TP_CHECK(tier.mapFrames(home.frames(), reinterpret_cast<void*>(address)).has_value());
  restoreRights(core_, granule, address, size);
  restoreDumpAdvice(core_, granule, address, size);
  wake(address, size);
}

bool WholeGranules::promote(const GranuleLock& granule, Budget::Beyond beyond) {
  const std::optional<Home> home = homes_.of(granule);
  const PageIndex first = firstPage(granule);
  if (swap_ == nullptr || !home || !homes_.mapsWhole(*home) || homes_.keeps(*home)) return false;
  if (!homes_.movable(granule, first, kPagesPerGranule)) return false;
  if (!core_.budget.tryCharge(PageCount(kPagesPerGranule), beyond)) return false;
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  DirectTier& tier = *core_.tiers.direct(home->tier);
  MutexLock lock(transfer_.mutex());
  if (!take(granule, *home)) {
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
  homes_.release(*home);
  transfer_.countMoved(core_.stats->promotions, core_.stats->promoted_bytes, kPagesPerGranule);
  return true;
}

bool WholeGranules::canMove(const GranuleLock& granule, const Home& to) const {
  const PageIndex first = firstPage(granule);
  if (!homes_.mapsWhole(to)) return homes_.movable(granule, first, kPagesPerGranule);
  // Rights of parts cannot be given to what is mapped whole. What the program has given back of it
  // is still mapped, and goes along.
  const uintptr_t start = core_.space->addressOf(granule);
  const uintptr_t end = start + kGranuleSize;
  for (uintptr_t at = start; at < end;) {
    const ProtectionSpan span = core_.space->addresses().spanAt(at, Bytes(end - at));
    const bool all = span.size == Bytes(kGranuleSize);
    if (!all && span.protection != kNotHandedOut &&
        rightsOf(span.protection) != Rights::kReadWrite) {
      return false;
    }
    at += span.size.value();
  }
  return !core_.space->anchored().any(first, kPagesPerGranule);
}

bool WholeGranules::move(const GranuleLock& granule, const Home& home, const Home& to) {
  if (!canMove(granule, to)) return false;
  const uintptr_t address = core_.space->addressOf(granule);
  const Bytes size(kGranuleSize);
  MutexLock lock(transfer_.mutex());
  if (!take(granule, home)) return false;
  memcpy(core_.tiers.direct(to.tier)->frameMemory(to.first),
         core_.tiers.direct(home.tier)->frameMemory(home.first), kGranuleSize);
  // Replaces a mapping by one of the same extent, which the kernel has room for.
  TP_CHECK(homes_.map(granule, firstPage(granule), kPagesPerGranule, to));
  restoreRights(core_, granule, address, size);
  swap_->letGo(address, size);
  homes_.release(home);
  return true;
}

}  // namespace tidepool
