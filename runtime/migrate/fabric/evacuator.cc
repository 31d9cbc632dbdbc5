// SPDX-License-Identifier: Apache-2.0
// Far pages are claimed as if they were being fetched, so that a thread that touches one waits for
// it; read and written without the granule's lock; and then named at their new frames. Pages that
// are discarded meanwhile have another word by then, and their frames are given back.
#include "runtime/migrate/fabric/evacuator.h"

#include <algorithm>
#include <utility>

#include "runtime/os/memory.h"

namespace tidepool {

Result<std::unique_ptr<Evacuator>> Evacuator::create(Core& core, GranuleMover& mover) {
  auto bytes = Mapping::anonymous(Bytes(kGranuleSize));
  if (!bytes) return tl::unexpected(bytes.error());
  return std::unique_ptr<Evacuator>(new Evacuator(core, mover, std::move(*bytes)));
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
  [[maybe_unused]] const Status freed =
      core_.kernel->discard(reinterpret_cast<uintptr_t>(bytes_.data()), bytes_.size());
  return Progress::kDone;
}

bool Evacuator::fetchTierTakesPages() const {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    const FetchTier* const tier = core_.tiers.fetch(number);
    if (tier != nullptr && !tier->closed() && tier->used() < tier->capacity()) return true;
  }
  return false;
}

/// Whether local pages are on their way out. They have to have somewhere to go: while a drain is
/// under way nobody says that far memory is exhausted.
bool Evacuator::roomIsComing() const {
  return fetchTierTakesPages() && core_.budget.room() == PageCount() && core_.room.pagesLeave();
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
  if (core_.budget.room() == PageCount() && !fetchTierTakesPages()) return false;
  claim(index, tier);
  if (moving_.count > 0 && fetch(tier)) {
    uint64_t done = 0;
    while (done < moving_.count) {
      const uint64_t end = findFrames(done, tier);
      if (end == done || !writeOut(done, end)) break;
      settle(done, end);
      done = end;
    }
    if (done < moving_.count) done += install(done);
    if (done < moving_.count) unclaim(done);
  }
  return core_.tiers.tier(tier).table().heldHere().value() < before;
}

void Evacuator::claim(GranuleIndex index, uint8_t tier) {
  moving_.granule = index;
  moving_.count = 0;
  const GranuleLock granule(*core_.space, index);
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    const PageIndex page = firstPage(granule) + i;
    const PageWord word = core_.space->word(page);
    if (word.tier() != tier) continue;
    if (word.state() == PageState::kLocal) {
      dropFarCopy(core_, granule, page, word);
    } else if (word.state() == PageState::kFar) {
      moving_.pages[moving_.count++] = claimFar(core_, granule, {page, PageCount(1)});
    }
  }
}

bool Evacuator::fetch(uint8_t tier) {
  Tier& from = core_.tiers.tier(tier);
  Status outcome;
  for (uint64_t at = 0; at < moving_.count && outcome;) {
    uint64_t run = 1;
    const FrameIndex first = moving_.pages[at].frames().first;
    while (at + run < moving_.count && moving_.pages[at + run].frames().first == first + run) ++run;
    outcome = from.read({first, PageCount(run)}, bytesOf(at));
    at += run;
  }
  if (outcome) return true;
  const ErrorCode code = outcome.error().code();
  if (code == ErrorCode::kLost || code == ErrorCode::kStaleEpoch ||
      code == ErrorCode::kPermission) {
    loseClaimed(tier, code);
  } else {
    unclaim(0);
  }
  return false;
}

uint64_t Evacuator::findFrames(uint64_t at, uint8_t tier) {
  for (uint8_t number = 1; number <= core_.tiers.count(); ++number) {
    FetchTier* const to = core_.tiers.fetch(number);
    if (number == tier || to == nullptr) continue;
    const auto run = to->allocate(PageCount(moving_.count - at));
    if (!run) continue;
    for (uint64_t i = 0; i < run->count.value(); ++i) {
      moving_.to[at + i] = run->first + i;
      moving_.to_tier[at + i] = number;
    }
    return at + run->count.value();
  }
  return at;
}

bool Evacuator::writeOut(uint64_t begin, uint64_t end) {
  const FrameRun run{moving_.to[begin], PageCount(end - begin)};
  Tier& to = core_.tiers.tier(moving_.to_tier[begin]);
  const Status written = to.write(run, bytesOf(begin));
  if (written) return true;
  to.release(run);
  if (!to.closed()) reportError(core_, "cannot write to far memory: %s", written.error().text());
  to.close();
  return false;
}

void Evacuator::settle(uint64_t begin, uint64_t end) {
  const GranuleLock granule(*core_.space, moving_.granule);
  for (uint64_t i = begin; i < end; ++i) {
    moving_.pages[i].settleFar(core_, granule, moving_.to_tier[i], moving_.to[i]);
  }
}

uint64_t Evacuator::install(uint64_t begin) {
  const GranuleLock granule(*core_.space, moving_.granule);
  uint64_t done = 0;
  for (uint64_t i = begin; i < moving_.count; ++i, ++done) {
    FarClaim& page = moving_.pages[i];
    if (page.stillClaimed(core_) == 0) {
      page.settleGone(core_, granule);
      continue;
    }
    if (!core_.budget.tryCharge(PageCount(1))) break;
    const uintptr_t address = core_.space->addressOf(page.first());
    if (copyAll(*core_.port, address, bytesOf(i), Bytes(kPageSize), Wake::kNo).outcome ==
        PortOutcome::kDone) {
      page.settleLocal(core_, granule, PageCount(1), 1, FarCopy::kDropped);
      core_.port->wake(address, Bytes(kPageSize));
    } else {
      core_.budget.discharge(PageCount(1));
      page.settleGone(core_, granule);
    }
  }
  return done;
}

void Evacuator::unclaim(uint64_t begin) {
  const GranuleLock granule(*core_.space, moving_.granule);
  for (uint64_t i = begin; i < moving_.count; ++i) moving_.pages[i].abandon(core_, granule);
}

void Evacuator::loseClaimed(uint8_t tier, ErrorCode error) {
  const GranuleLock granule(*core_.space, moving_.granule);
  uint64_t lost = 0;
  for (uint64_t i = 0; i < moving_.count; ++i) lost += moving_.pages[i].countClaimed(core_);
  if (core_.stats->lost_pages.fetch_add(lost, std::memory_order_relaxed) == 0 && lost > 0) {
    reportError(core_,
                "far memory %s is lost (%s): pages that live there end in SIGBUS when touched",
                core_.tiers.tier(tier).name(), errorCodeName(error));
  }
  for (uint64_t i = 0; i < moving_.count; ++i) moving_.pages[i].lose(core_, granule);
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
