// SPDX-License-Identifier: Apache-2.0
// Demotion: the pages leave the space first (UFFDIO_MOVE), so that whoever touches them waits; they
// are copied to the tier, and the tier is mapped in their place. Promotion: writers are held by the
// write barrier while the frames are copied, then the copy is moved over the mapping in one step;
// readers never wait.
#include "runtime/migrate/direct/granule_mover.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/raw_calls.h"
#include "runtime/migrate/direct/access_watch.h"
#include "runtime/os/memory.h"

namespace tidepool {

Result<std::unique_ptr<GranuleMover>> GranuleMover::create(Core& core) {
  auto area = Mapping::reserved(Bytes(2 * kGranuleSize), Bytes(kGranuleSize));
  if (!area) return tl::unexpected(area.error());
  std::unique_ptr<GranuleMover> mover(new GranuleMover(core, std::move(*area)));
  TP_TRY(mover->renew());
  mover->tierCame();
  return mover;
}

void GranuleMover::tierCame() {
  if (swap_ != nullptr || !mapsWholeGranules()) return;
  // Without it granules merely stay in the tier.
  if (auto swap = os::MappingSwap::open()) swap_ = std::move(*swap);
}

Status GranuleMover::renew() {
  if (swap_ != nullptr) swap_->forgetThread();
  swap_.reset();
  TP_TRY(os::mapFresh(staging_, Bytes(kGranuleSize)));
  if (core_.port->canMove()) TP_TRY(core_.port->arm(staging_, Bytes(kGranuleSize)));
  return {};
}

std::optional<GranuleMover::Home> GranuleMover::homeOf(const GranuleLock& granule) const {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageWord word = core_.space->word(firstPage(granule) + i);
    if (word.state() == PageState::kDirect ||
        (word.state() == PageState::kLocal && word.has(kFlagShadow))) {
      return Home{word.tier(), word.frame() - i};
    }
  }
  return std::nullopt;
}

void GranuleMover::releaseHomeIfUnused(const GranuleLock& granule, uint8_t tier, FrameIndex home) {
  if (homeOf(granule)) return;
  core_.tiers.tier(tier).release({home, PageCount(kPagesPerGranule)});
}

std::optional<GranuleMover::Home> GranuleMover::findHomeIn(uint8_t number, Takes takes) const {
  DirectTier* tier = core_.tiers.direct(number);
  if (tier == nullptr) return std::nullopt;
  if (takes == Takes::kPages && tier->mapUnit() > PageCount(1)) return std::nullopt;
  const auto run = tier->allocate(PageCount(kPagesPerGranule));
  if (!run) return std::nullopt;
  return Home{number, run->first};
}

std::optional<GranuleMover::Home> GranuleMover::findHome(GranuleIndex granule, Takes takes) const {
  const Placement placement = core_.space->placements().of(granule);
  if (placement.isLocal()) return std::nullopt;
  if (const uint8_t wanted = placement.tier()) {
    // Pages that are to be in a fetch tier are local until they go there.
    if (core_.tiers.fetch(wanted) != nullptr) return std::nullopt;
    if (const auto home = findHomeIn(wanted, takes)) return home;
  }
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    if (const auto home = findHomeIn(number, takes)) return home;
  }
  return std::nullopt;
}

bool GranuleMover::movable(const GranuleLock& granule, PageIndex first, uint64_t pages) const {
  // What is not handed out is not plain.
  const Protections& protections = core_.space->protections();
  if (mapsWholeGranules()) {
    return !core_.space->anchored().any(firstPage(granule), kPagesPerGranule) &&
           protections.plain(core_.space->addressOf(granule), Bytes(kGranuleSize));
  }
  return !core_.space->anchored().any(first, pages) &&
         protections.plain(core_.space->addressOf(first), Bytes(pages * kPageSize));
}

PageSet GranuleMover::movablePages(const GranuleLock& granule) const {
  PageSet result;
  if (movable(granule, firstPage(granule), kPagesPerGranule)) return result.set();
  if (mapsWholeGranules()) return result;
  const uintptr_t start = core_.space->addressOf(granule);
  for (uint64_t at = 0; at < kPagesPerGranule;) {
    const ProtectionSpan span = core_.space->protections().spanAt(
        start + at * kPageSize, Bytes((kPagesPerGranule - at) * kPageSize));
    const uint64_t end = at + toPages(span.size).value();
    const bool plain = rightsOf(span.protection) == Rights::kReadWrite;
    for (; at < end; ++at) {
      result[at] = plain && !core_.space->anchored().any(firstPage(granule) + at, 1);
    }
  }
  return result;
}

bool GranuleMover::mapHome(const GranuleLock& granule, PageIndex first, uint64_t pages,
                           const Home& home) {
  DirectTier& tier = *core_.tiers.direct(home.tier);
  const uint64_t within = first.value() % kPagesPerGranule;
  const uintptr_t address = core_.space->addressOf(first);
  const FrameRun run{home.first + within, PageCount(pages)};
  if (!tier.mapFrames(run, reinterpret_cast<void*>(address))) return false;
  spoil(granule);
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

bool GranuleMover::placeFar(const GranuleLock& granule, PageIndex page) {
  const PageIndex first = firstPage(granule);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageState state = core_.space->word(first + i).state();
    if (state == PageState::kEvicting || state == PageState::kFetching ||
        state == PageState::kFar || state == PageState::kLost) {
      return false;
    }
  }
  const PageSet movable_pages = movablePages(granule);
  if (!movable_pages[page - first]) return false;
  std::optional<Home> home = homeOf(granule);
  const bool fresh_home = !home.has_value();
  if (fresh_home) home = findHome(granule);
  if (!home || (!fresh_home && !ownHome(granule, *home))) return false;
  if (mapsWhole(*home)) {
    const bool placed = fresh_home && placeWhole(granule, *home).has_value();
    if (fresh_home && !placed) releaseHomeIfUnused(granule, home->tier, home->first);
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
    if (state == PageState::kEmpty) {
      // Frames are erased when they are released or their page is dropped, unless others still
      // held them then.
      if (!fresh_home && core_.forked.load(std::memory_order_relaxed)) {
        const Status erased =
            core_.tiers.direct(home->tier)->erase({home->first + at, PageCount(run)});
        TP_CHECK(erased.has_value());
      }
      mapHome(granule, first + at, run, *home);
    } else if (state == PageState::kLocal) {
      adopt(granule, *home);
      demoteMovable(granule, first + at, run);
    }
    at += run;
  }
  if (fresh_home) releaseHomeIfUnused(granule, home->tier, home->first);
  return core_.space->word(page).state() == PageState::kDirect;
}

void GranuleMover::adopt(const GranuleLock& granule, const Home& home) {
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

uint64_t GranuleMover::demote(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  if (movable(granule, first, pages)) return demoteMovable(granule, first, pages);
  const PageSet movable_pages = movablePages(granule);
  const uint64_t from = first.value() % kPagesPerGranule;
  uint64_t moved = 0;
  forRuns(movable_pages, [&](uint64_t start, uint64_t count) {
    const uint64_t end = std::min(start + count, from + pages);
    start = std::max(start, from);
    if (start < end) moved += demoteMovable(granule, first + (start - from), end - start);
  });
  return moved;
}

uint64_t GranuleMover::demoteMovable(const GranuleLock& granule, PageIndex first, uint64_t pages) {
  std::optional<Home> home = homeOf(granule);
  if (!home) {
    home = findHome(granule);
    if (!home) return 0;
    if (mapsWhole(*home)) {
      // Its other pages would have to go along, hot or not, and cannot come back.
      const std::optional<uint64_t> moved = placesOf(*core_.space, granule).local.count() <= pages
                                                ? placeWhole(granule, *home)
                                                : std::nullopt;
      if (!moved) releaseHomeIfUnused(granule, home->tier, home->first);
      return moved.value_or(0);
    }
    adopt(granule, *home);
  } else if (!ownHome(granule, *home)) {
    return 0;
  }
  DirectTier& tier = *core_.tiers.direct(home->tier);
  const uint64_t within = first.value() % kPagesPerGranule;
  MutexLock lock(staging_mutex_);
  if (!copyOut(granule, first, pages, tier.frameMemory(home->first + within)) ||
      !mapHome(granule, first, pages, *home)) {
    putBack(granule, first, pages);
    return 0;
  }
  if (core_.port->canMove()) {
    [[maybe_unused]] const Status freed =
        os::discard(staging_ + within * kPageSize, Bytes(pages * kPageSize));
  }
  core_.budget.discharge(PageCount(pages));
  countMoved(core_.stats->demotions, core_.stats->demoted_bytes, pages);
  return pages;
}

void GranuleMover::countMoved(StatCounter& moves, StatCounter& bytes, uint64_t pages) {
  count(moves, pages);
  count(bytes, pages * kPageSize);
  moved_.fetch_add(pages * kPageSize, std::memory_order_relaxed);
}

bool GranuleMover::copyOut(const GranuleLock& granule, PageIndex first, uint64_t pages,
                           std::byte* to) {
  const uintptr_t from = core_.space->addressOf(first);
  const Bytes size(pages * kPageSize);
  if (core_.port->canMove()) {
    const uintptr_t slot = staging_ + (first.value() % kPagesPerGranule) * kPageSize;
    if (moveOutOfSpace(core_, granule, slot, from, size).done < size) return false;
    memcpy(to, reinterpret_cast<void*>(slot), size.value());
    return true;
  }
  // Older kernels: writers wait, readers go on with the page that is copied. Devices that were
  // given it before do not wait.
  if (!core_.port->writeProtect(from, size, Wake::kNo) || core_.mayPinPages()) return false;
  const iovec target{to, size.value()};
  const iovec source{reinterpret_cast<void*>(from), size.value()};
  return raw::call(SYS_process_vm_readv, raw::getpid(), &target, 1, &source, 1, 0) ==
         static_cast<ssize_t>(size.value());
}

void GranuleMover::putBack(const GranuleLock&, PageIndex first, uint64_t pages) {
  const uintptr_t address = core_.space->addressOf(first);
  const uintptr_t slot = staging_ + (first.value() % kPagesPerGranule) * kPageSize;
  if (core_.port->canMove()) {
    // Pages that had not left answer kExists or kAbsent: both mean that they are where they were.
    for (uint64_t i = 0; i < pages; ++i) {
      PortResult result;
      do {
        result = core_.port->move(address + i * kPageSize, slot + i * kPageSize, Bytes(kPageSize),
                                  Wake::kNo);
        // Nobody else can pin a page that is here, so kBusy passes; its bytes have no other home.
      } while (result.outcome == PortOutcome::kRetry || result.outcome == PortOutcome::kBusy ||
               result.outcome == PortOutcome::kNoMemory);
    }
  } else {
    [[maybe_unused]] const Status open =
        core_.port->writeProtect(address, Bytes(pages * kPageSize), Wake::kYes);
  }
  core_.port->wake(address, Bytes(pages * kPageSize));
}

bool GranuleMover::charge(PageCount pages, Beyond beyond) {
  if (beyond == Beyond::kNever) return core_.budget.tryCharge(pages);
  core_.budget.charge(pages);
  return true;
}

bool GranuleMover::swapIn(const GranuleLock& granule, const Run& run) {
  const PageWord word = core_.space->word(run.first);
  const uintptr_t address = core_.space->addressOf(run.first);
  const Bytes size(run.count * kPageSize);
  const uintptr_t fill = staging_ + kGranuleSize;
  if (!os::mapFresh(fill, size)) return false;
  memcpy(reinterpret_cast<void*>(fill), core_.tiers.direct(word.tier())->frameMemory(word.frame()),
         size.value());
  // Before it is there: what is closed must not be open for an instant.
  const int protection = core_.space->protections().spanAt(address, size).protection;
  // And what core dumps are not to have is nowhere for an instant; the rest may miss in one.
  const bool hidden = !core_.space->undumped().none();
  if ((hidden && !os::keepFromDumps(fill, size)) ||
      (protection != (PROT_READ | PROT_WRITE) && !os::protect(fill, size, protection)) ||
      !os::moveMapping(fill, address, size)) {
    [[maybe_unused]] const Status gone = os::mapUnused(fill, size);
    return false;
  }
  if (hidden) {
    [[maybe_unused]] const Status dumped = os::dumpAgain(address, size);
    restoreDumpAdvice(core_, granule, address, size);
  }
  if (core_.barrier != nullptr) core_.barrier->wake(address, size);
  // The mapping is this run's own, so that arming it needs nothing that could be refused.
  const Status armed = core_.port->arm(address, size);
  TP_CHECK(armed.has_value());
  for (uint64_t i = 0; i < run.count; ++i) {
    const PageWord direct = core_.space->word(run.first + i);
    TP_CHECK(core_.space->change(
        granule, run.first + i, direct,
        PageWord(PageState::kLocal, kFlagShadow, direct.tier(), direct.index())));
  }
  countMoved(core_.stats->promotions, core_.stats->promoted_bytes, run.count);
  return true;
}

}  // namespace tidepool
