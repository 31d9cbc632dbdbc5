// SPDX-License-Identifier: Apache-2.0
// Frames are released after the words that name them have changed; a home is mapped page by page
// as its pages go there.
#include "runtime/migrate/direct/granule_homes.h"

#include <cstring>

#include "runtime/base/debug_check.h"
#include "runtime/os/memory.h"

namespace tidepool {

std::optional<Home> GranuleHomes::of(const GranuleLock& granule) const {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageWord word = core_.space->word(firstPage(granule) + i);
    if (word.state() == PageState::kDirect ||
        (word.state() == PageState::kLocal && word.has(kFlagShadow))) {
      TP_DCHECK_OP(word.index(), >=, i);
      return Home{word.tier(), word.frame() - i};
    }
  }
  return std::nullopt;
}

std::optional<Home> GranuleHomes::findIn(uint8_t number, Takes takes) const {
  DirectTier* tier = core_.tiers.direct(number);
  if (tier == nullptr || tier->suspended()) return std::nullopt;
  if (takes == Takes::kPages && tier->mapUnit() > PageCount(1)) return std::nullopt;
  const auto run = tier->allocate(PageCount(kPagesPerGranule));
  if (!run) return std::nullopt;
  return Home{number, run->first};
}

std::optional<Home> GranuleHomes::find(GranuleIndex granule, Takes takes) const {
  const Placement placement = core_.space->placements().of(granule);
  if (placement.isLocal()) return std::nullopt;
  if (const uint8_t wanted = placement.tier()) {
    // Pages that are to be in a fetch tier are local until they go there.
    if (core_.tiers.fetch(wanted) != nullptr) return std::nullopt;
    if (const auto home = findIn(wanted, takes)) return home;
  }
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    if (const auto home = findIn(number, takes)) return home;
  }
  return std::nullopt;
}

void GranuleHomes::adopt(const GranuleLock& granule, const Home& home) {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    const PageWord word = dropFarCopy(core_, granule, page, core_.space->word(page));
    if (word.state() != PageState::kLocal) continue;
    const auto kept = static_cast<uint8_t>(word.raw() & (kFlagProbed | kFlagUnproven));
    core_.space->change(
        granule, page, word,
        PageWord(PageState::kLocal, kFlagShadow | kept, home.tier, home.first.value() + i));
  }
}

void GranuleHomes::forget(const GranuleLock& granule) {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kLocal || !word.has(kFlagShadow)) continue;
    const auto kept = static_cast<uint8_t>(word.raw() & (kFlagProbed | kFlagUnproven));
    core_.space->change(granule, page, word, PageWord(PageState::kLocal, kept, 0, 0));
  }
}

bool GranuleHomes::map(const GranuleLock& granule, PageIndex first, uint64_t pages,
                       const Home& home) {
  DirectTier& tier = *core_.tiers.direct(home.tier);
  TP_CHECK(!tier.suspended());
  const uint64_t within = first.value() % kPagesPerGranule;
  // Others' pages would be mapped over.
  TP_CHECK(granule.covers(first) && within + pages <= kPagesPerGranule);
  const uintptr_t address = core_.space->addressOf(first);
  const FrameRun run{home.first + within, PageCount(pages)};
  if (!tier.mapFrames(run, reinterpret_cast<void*>(address))) return false;
  closing_.spoil(granule);
  restoreDumpAdvice(core_, granule, address, toBytes(run.count));
  if (core_.barrier != nullptr) {
    // Without it the pages are merely not promoted.
    [[maybe_unused]] const Status armed = core_.barrier->arm(address, toBytes(run.count));
  }
  for (uint64_t i = 0; i < pages; ++i) {
    TP_CHECK(
        core_.space->change(granule, first + i, core_.space->word(first + i),
                            PageWord(PageState::kDirect, 0, home.tier, run.first.value() + i)));
  }
  core_.port->wake(address, toBytes(run.count));
  return true;
}

void GranuleHomes::move(const GranuleLock& granule, const Home& home, const Home& to) {
  TP_CHECK(home.tier != to.tier || home.first != to.first);
  const PageIndex first = firstPage(granule);
  const DirectTier& from_tier = *core_.tiers.direct(home.tier);
  const DirectTier& to_tier = *core_.tiers.direct(to.tier);
  forEachDirect(*core_.space, granule, [&](PageIndex from, uint64_t count) {
    const uint64_t within = from - first;
    memcpy(to_tier.frameMemory(to.first + within), from_tier.frameMemory(home.first + within),
           count * kPageSize);
    // Replaces a mapping by one of the same extent, which the kernel has room for.
    TP_CHECK(map(granule, from, count, to));
    restoreRights(core_, granule, core_.space->addressOf(from), Bytes(count * kPageSize));
    core_.barrier->wake(core_.space->addressOf(from), Bytes(count * kPageSize));
  });
  adopt(granule, to);
  release(home);
}

bool GranuleHomes::own(const GranuleLock& granule, Home& home) {
  if (suspended(home)) return false;
  if (!frozen(home)) return true;
  const std::optional<Home> own = find(granule, Takes::kPages);
  if (!own) return false;
  move(granule, home, *own);
  home = *own;
  return true;
}

void GranuleHomes::openToWriters(PageIndex from, PageIndex end) {
  forEachDirect(*core_.space, from, end, [&](PageIndex first, uint64_t count) {
    [[maybe_unused]] const Status open = core_.barrier->writeProtect(
        core_.space->addressOf(first), Bytes(count * kPageSize), Wake::kYes);
  });
}

bool GranuleHomes::anyMapsWhole() const {
  bool any = false;
  core_.tiers.forEach([&](uint8_t number, Tier&) {
    const DirectTier* tier = core_.tiers.direct(number);
    any = any || (tier != nullptr && tier->mapUnit() > PageCount(1));
  });
  return any;
}

bool GranuleHomes::liesWhole(const GranuleLock& granule) const {
  const std::optional<Home> home = of(granule);
  return home && mapsWhole(*home);
}

bool GranuleHomes::movable(const GranuleLock& granule, PageIndex first, uint64_t pages) const {
  // What is not handed out is not plain.
  const AddressMap& addresses = core_.space->addresses();
  if (anyMapsWhole()) {
    return !core_.space->anchored().any(firstPage(granule), kPagesPerGranule) &&
           addresses.plain(core_.space->addressOf(granule), Bytes(kGranuleSize));
  }
  return !core_.space->anchored().any(first, pages) &&
         addresses.plain(core_.space->addressOf(first), Bytes(pages * kPageSize));
}

PageSet GranuleHomes::movablePages(const GranuleLock& granule) const {
  PageSet result;
  if (movable(granule, firstPage(granule), kPagesPerGranule)) return result.set();
  if (anyMapsWhole()) return result;
  const uintptr_t start = core_.space->addressOf(granule);
  for (uint64_t at = 0; at < kPagesPerGranule;) {
    const ProtectionSpan span = core_.space->addresses().spanAt(
        start + at * kPageSize, Bytes((kPagesPerGranule - at) * kPageSize));
    const uint64_t end = at + toPages(span.size).value();
    const bool plain = rightsOf(span.protection) == Rights::kReadWrite;
    for (; at < end; ++at) {
      result[at] = plain && !core_.space->anchored().any(firstPage(granule) + at, 1);
    }
  }
  return result;
}

}  // namespace tidepool
