// SPDX-License-Identifier: Apache-2.0
// Between close() and finish() nobody holds the granule's lock: what else happens to the granule
// then spoils the promotion (ClosingGranules), and writers wait until it has ended, well or not.
#include "runtime/migrate/direct/promoter.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

// What a look may cost a granule: as much as the least that is promoted of one.
constexpr Nanoseconds kLookShare(20'000);

}  // namespace

size_t Promoter::granulesALook() const {
  // Frozen homes are closed for others, and in other ways.
  if (core_.fork.forked()) return 1;
  return std::clamp<uint64_t>(look_cost_ / kLookShare, 1, ClosingGranules::kMost);
}

size_t Promoter::promote(const GranuleLock& granule, std::span<const Run> runs,
                         Budget::Beyond beyond) {
  if (runs.empty()) return 0;
  const std::span<const Run> closed = runs.first(closeRuns(granule, runs, beyond));
  const bool pinned = !closed.empty() && core_.mayPinPages();
  if (pinned) countHeld(closed);
  return finishRuns(granule, closed, pinned ? Outcome::kStays : Outcome::kMoves);
}

size_t Promoter::closeRuns(const GranuleLock& granule, std::span<const Run> runs,
                           Budget::Beyond beyond) {
  if (core_.barrier == nullptr || homes_.suspended(granule)) return 0;
  if (core_.mayStillPin()) {
    countHeld(runs);
    return 0;
  }
  size_t closed = 0;
  for (const Run& run : runs) {
    TP_CHECK(granule.covers(run.first) && run.first + run.count <= granule.end());
    if (!homes_.movable(granule, run.first, run.count)) break;
    if (!core_.budget.tryCharge(PageCount(run.count), beyond)) break;
    // From here on a thread that would write, the kernel on behalf of a device too, waits for the
    // wake in swapIn(). A pin taken before is one that the look after this sees.
    if (!core_.barrier->writeProtect(core_.space->addressOf(run.first),
                                     Bytes(run.count * kPageSize), Wake::kNo)) {
      core_.budget.discharge(PageCount(run.count));
      break;
    }
    ++closed;
  }
  return closed;
}

void Promoter::countHeld(std::span<const Run> runs) {
  for (const Run& run : runs) count(core_.stats->promotions_held_by_pins, run.count);
}

size_t Promoter::finishRuns(const GranuleLock& granule, std::span<const Run> runs,
                            Outcome outcome) {
  if (runs.empty()) return 0;
  MutexLock lock(transfer_.mutex());
  size_t moved = 0;
  while (outcome == Outcome::kMoves && moved < runs.size() &&
         transfer_.swapIn(granule, runs[moved].first, runs[moved].count)) {
    ++moved;
  }
  const std::optional<Home> home = homes_.of(granule);
  const bool stays_closed = home && homes_.frozen(*home);
  for (const Run& run : runs.subspan(moved)) {
    // Of a spoiled one some may be gone.
    if (!stays_closed) homes_.openToWriters(run.first, run.first + run.count);
    core_.barrier->wake(core_.space->addressOf(run.first), Bytes(run.count * kPageSize));
    core_.budget.discharge(PageCount(run.count));
  }
  return moved;
}

void Promoter::close(const GranuleLock& granule, Promotion& promotion) {
  promotion.closed =
      closeRuns(granule, {promotion.runs.data(), promotion.count}, Budget::Beyond::kNever);
  if (promotion.closed > 0) promotion.place = closing_.add(granule);
}

bool Promoter::lookForPins() {
  const Nanoseconds start = core_.clock->now();
  const bool pins = core_.mayPinPages();
  look_cost_ = core_.clock->now() - start;
  return pins;
}

size_t Promoter::finish(const GranuleLock& granule, const Promotion& promotion, bool pinned) {
  TP_CHECK(promotion.closed <= promotion.count && promotion.count <= promotion.runs.size());
  if (promotion.closed == 0) return 0;
  const std::span<const Run> runs(promotion.runs.data(), promotion.closed);
  const bool spoiled = closing_.end(granule, promotion.place);
  if (pinned) countHeld(runs);
  // Rights may have changed meanwhile, which leaves the mapping as it is.
  const bool good =
      !pinned && !spoiled && std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
        return homes_.movable(granule, run.first, run.count);
      });
  const size_t moved = finishRuns(granule, runs, good ? Outcome::kMoves : Outcome::kStays);
  // Also who met another of its pages, frozen since a fork(), and was put off.
  core_.barrier->wake(core_.space->addressOf(granule), Bytes(kGranuleSize));
  return moved;
}

bool Promoter::bringIn(const GranuleLock& granule, PageIndex page) {
  if (core_.space->word(page).state() != PageState::kDirect) return true;
  if (core_.barrier == nullptr || homes_.suspended(granule)) return false;
  if (!homes_.movable(granule, page, 1)) return false;
  closing_.spoil(granule);
  MutexLock lock(transfer_.mutex());
  const uintptr_t address = core_.space->addressOf(page);
  if (!core_.barrier->writeProtect(address, Bytes(kPageSize), Wake::kNo)) return false;
  core_.budget.charge(PageCount(1));
  if (transfer_.swapIn(granule, page, 1)) return true;
  core_.budget.discharge(PageCount(1));
  return false;
}

bool Promoter::bringInAll(const GranuleLock& granule, PageIndex first, PageIndex end) {
  TP_CHECK(granule.covers(first) && end <= granule.end());
  if (homes_.suspended(granule)) return false;
  if (homes_.liesWhole(granule) && !whole_.promote(granule)) return false;
  MutexLock lock(transfer_.mutex());
  for (PageIndex page = first; page < end;) {
    if (core_.space->word(page).state() != PageState::kDirect) {
      ++page;
      continue;
    }
    // As far as the rights are the same: they move along with a mapping.
    const uintptr_t address = core_.space->addressOf(page);
    const uint64_t alike =
        toPages(core_.space->addresses().spanAt(address, Bytes((end - page) * kPageSize)).size)
            .value();
    uint64_t run = 1;
    while (run < alike && core_.space->word(page + run).state() == PageState::kDirect) ++run;
    const Bytes size(run * kPageSize);
    // Without a barrier nobody can be made to wait: see docs/limits.md.
    if (core_.barrier != nullptr && !core_.barrier->writeProtect(address, size, Wake::kNo)) {
      return false;
    }
    core_.budget.charge(PageCount(run));
    if (!transfer_.swapIn(granule, page, run)) {
      core_.budget.discharge(PageCount(run));
      if (core_.barrier != nullptr) {
        [[maybe_unused]] const Status open = core_.barrier->writeProtect(address, size, Wake::kYes);
      }
      return false;
    }
    page = page + run;
  }
  return true;
}

}  // namespace tidepool
