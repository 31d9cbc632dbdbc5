// SPDX-License-Identifier: Apache-2.0
// How pages move: see far_move.h, and granule_mover.h for what is mapped in place.
#include "runtime/migrate/fabric/evacuator.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace tidepool {

Result<std::unique_ptr<Evacuator>> Evacuator::create(Core& core, GranuleMover& mover) {
  auto moving = FarMove::create(core, kPagesPerGranule);
  if (!moving) return tl::unexpected(moving.error());
  return std::unique_ptr<Evacuator>(new Evacuator(core, mover, std::move(*moving)));
}

Evacuator::Progress Evacuator::moveOff(uint8_t tier, Nanoseconds slice) {
  const Nanoseconds until = core_.clock->now() + slice;
  const Tier& leaving = core_.tiers.tier(tier);
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  GranuleIndex& hand = hands_[tier];
  while (!leaving.holdsNothing()) {
    if (core_.clock->now() >= until) return Progress::kMoved;
    hand = core_.space->nextWithPages(hand, end);
    if (hand < end) {
      if (moveGranule(hand, tier)) {
        moved_[tier] = true;
      } else if (namesTier(hand, tier) && roomIsComing()) {
        return Progress::kWaits;
      }
      ++hand;
    } else {
      hand = GranuleIndex(0);
      if (!std::exchange(moved_[tier], false)) return Progress::kStuck;
    }
  }
  // The buffer's memory is wanted elsewhere until the next time.
  const Mapping& memory = moving_.memory();
  [[maybe_unused]] const Status freed =
      core_.kernel->discard(reinterpret_cast<uintptr_t>(memory.data()), memory.size());
  return Progress::kDone;
}

/// Whether local pages are on their way out. They have to have somewhere to go: while a drain is
/// under way nobody says that far memory is exhausted.
bool Evacuator::roomIsComing() const {
  bool takes_pages = false;
  core_.tiers.forEach([&](uint8_t, const Tier& tier) {
    // What the pool of compressed pages takes is local memory, too.
    takes_pages = takes_pages || (tier.kind() != TierKind::kCompressed && !tier.closed() &&
                                  tier.used() < tier.capacity());
  });
  return takes_pages && core_.budget.room() == PageCount() && core_.room.pagesLeave();
}

bool Evacuator::namesTier(GranuleIndex granule, uint8_t tier) const {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (core_.space->word(firstPage(granule) + i).tier() == tier) return true;
  }
  return false;
}

bool Evacuator::moveGranule(GranuleIndex index, uint8_t tier) {
  const uint64_t before = core_.tiers.tier(tier).table().heldHere().value();
  if (core_.tiers.direct(tier) != nullptr) {
    mover_.changes.vacate(GranuleLock(*core_.space, index), tier);
    return core_.tiers.tier(tier).table().heldHere().value() < before;
  }
  // Nothing is read that could not be put anywhere.
  const bool passes_on = passesOn(index);
  if (core_.budget.room() == PageCount() && !passes_on && !fetchTierTakesPages(core_)) return false;
  claim(index, tier);
  if (!moving_.empty() && fetch(tier)) {
    while (!moving_.empty() && moving_.findFrames(tier)) {
      const Status written = moving_.write();
      if (!written) {
        moving_.writeFailed(written.error().text());
        break;
      }
      moving_.settle([](PageIndex) {});
    }
    install(passes_on ? Budget::Beyond::kOnce : Budget::Beyond::kNever);
  }
  moving_.abandon();
  return core_.tiers.tier(tier).table().heldHere().value() < before;
}

void Evacuator::claim(GranuleIndex index, uint8_t tier) {
  TP_CHECK(moving_.empty());
  const GranuleLock granule(*core_.space, index);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    const PageWord word = core_.space->word(page);
    if (word.tier() != tier) continue;
    if (word.state() == PageState::kLocal) {
      dropFarCopy(core_, granule, page, word);
    } else if (word.state() == PageState::kFar) {
      moving_.claim(granule, page);
    }
  }
}

bool Evacuator::fetch(uint8_t tier) {
  const Status outcome = moving_.read();
  if (outcome) return true;
  const ErrorCode code = outcome.error().code();
  if (code == ErrorCode::kLost || code == ErrorCode::kStaleEpoch ||
      code == ErrorCode::kPermission) {
    loseClaimed(tier, code);
  }
  return false;
}

bool Evacuator::passesOn(GranuleIndex index) {
  // What was passed on before and did not arrive is still too much.
  if (core_.budget.held() > core_.budget.limit()) return false;
  const GranuleLock granule(*core_.space, index);
  if (mover_.homes.of(granule)) return true;
  const std::optional<Home> home = mover_.homes.find(granule);
  if (home) mover_.homes.release(*home);
  return home.has_value();
}

void Evacuator::passOn(GranuleIndex index, const PageSet& pages) {
  const GranuleLock granule(*core_.space, index);
  forRuns(pages & placesOf(*core_.space, granule).local, [&](uint64_t at, uint64_t count) {
    mover_.demoter.demote(granule, granule.first() + at, count);
  });
  // A tier that is mapped in whole granules takes all of it, or nothing.
  if (pages.any() && core_.budget.held() > core_.budget.limit()) {
    mover_.demoter.demote(granule, granule.first(), kPagesPerGranule);
  }
}

void Evacuator::install(Budget::Beyond beyond) {
  if (moving_.empty()) return;
  const GranuleIndex index = granuleOf(moving_.left()[0].first());
  PageSet too_many;
  for (FarClaim& page : moving_.left()) {
    const GranuleLock granule(*core_.space, granuleOf(page.first()));
    if (page.stillClaimed(core_) == 0) {
      page.settleGone(core_, granule);
      continue;
    }
    const bool fits = core_.budget.tryCharge(PageCount(1));
    if (!fits && !core_.budget.tryCharge(PageCount(1), beyond)) return;
    const uintptr_t address = core_.space->addressOf(page.first());
    if (copyAll(*core_.port, address, moving_.bytesOf(page), Bytes(kPageSize), Wake::kNo).outcome ==
        PortOutcome::kDone) {
      too_many[page.first() - granule.first()] = !fits;
      page.settleLocal(core_, granule, PageCount(1), 1, FarCopy::kDropped);
      core_.port->wake(address, Bytes(kPageSize));
    } else {
      core_.budget.discharge(PageCount(1));
      page.settleGone(core_, granule);
    }
  }
  passOn(index, too_many);
}

void Evacuator::loseClaimed(uint8_t tier, ErrorCode error) {
  const GranuleLock granule(*core_.space, granuleOf(moving_.left()[0].first()));
  uint64_t lost = 0;
  for (const FarClaim& page : moving_.left()) lost += page.countClaimed(core_);
  if (core_.stats->lost_pages.fetch_add(lost, std::memory_order_relaxed) == 0 && lost > 0) {
    reportError(core_,
                "far memory %s is lost (%s): pages that live there end in SIGBUS when touched",
                core_.tiers.tier(tier).name(), errorCodeName(error));
  }
  for (FarClaim& page : moving_.left()) page.lose(core_, granule);
}

uint64_t Evacuator::lose(uint8_t tier, FrameIndex from) {
  uint64_t lost = 0;
  const GranuleIndex end = granuleOf(core_.space->highWater() + (kPagesPerGranule - 1));
  const bool direct = core_.tiers.direct(tier) != nullptr;
  for (GranuleIndex index; (index = core_.space->nextWithPages(index, end)) < end; ++index) {
    const GranuleLock granule(*core_.space, index);
    if (direct) {
      lost += mover_.changes.lose(granule, tier, from);
      continue;
    }
    for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
      const PageIndex page = firstPage(granule) + i;
      const PageWord word = core_.space->word(page);
      if (word.tier() != tier || word.frame() < from) continue;
      if (word.state() == PageState::kLocal) dropFarCopy(core_, granule, page, word);
      if (word.state() != PageState::kFar) continue;
      TP_CHECK(core_.space->change(granule, page, word, PageWord(PageState::kLost, 0, 0, 0)));
      core_.tiers.tier(tier).release({word.frame(), PageCount(1)});
      poisonPage(core_, granule, page);
      ++lost;
    }
  }
  count(core_.stats->lost_pages, lost);
  return lost;
}

}  // namespace tidepool
