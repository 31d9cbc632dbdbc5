// SPDX-License-Identifier: Apache-2.0
// GranuleMover's promotion of runs. Callers hold the granule's lock, but between close() and
// finish() nobody does: what else happens to the granule then spoils the promotion (spoil()), and
// writers wait until it has ended, well or not.
#include "runtime/migrate/direct/granule_mover.h"

#include <algorithm>

namespace tidepool {
namespace {

// What a look may cost a granule: as much as the least that is promoted of one.
constexpr Nanoseconds kLookShare(20'000);

}  // namespace

size_t GranuleMover::granulesALook() const {
  // Frozen homes are closed for others, and in other ways.
  if (core_.forked.load(std::memory_order_relaxed)) return 1;
  return std::clamp<uint64_t>(look_cost_ / kLookShare, 1, kMostClosing);
}

size_t GranuleMover::promote(const GranuleLock& granule, std::span<const Run> runs, Beyond beyond) {
  if (runs.empty()) return 0;
  const std::span<const Run> closed = runs.first(closeRuns(granule, runs, beyond));
  const bool pinned = !closed.empty() && core_.mayPinPages();
  if (pinned) countHeld(closed);
  return finishRuns(granule, closed, pinned ? Outcome::kStays : Outcome::kMoves);
}

size_t GranuleMover::closeRuns(const GranuleLock& granule, std::span<const Run> runs,
                               Beyond beyond) {
  if (core_.barrier == nullptr) return 0;
  if (core_.mayStillPin()) {
    countHeld(runs);
    return 0;
  }
  size_t closed = 0;
  for (const Run& run : runs) {
    if (!movable(granule, run.first, run.count)) break;
    if (!charge(PageCount(run.count), beyond)) break;
    // From here on whoever would write, the kernel on behalf of a device too, waits for the wake
    // in swapIn(). A pin taken before is one that the look after this sees.
    if (!core_.barrier->writeProtect(core_.space->addressOf(run.first),
                                     Bytes(run.count * kPageSize), Wake::kNo)) {
      core_.budget.discharge(PageCount(run.count));
      break;
    }
    ++closed;
  }
  return closed;
}

void GranuleMover::countHeld(std::span<const Run> runs) {
  for (const Run& run : runs) count(core_.stats->promotions_held_by_pins, run.count);
}

size_t GranuleMover::finishRuns(const GranuleLock& granule, std::span<const Run> runs,
                                Outcome outcome) {
  if (runs.empty()) return 0;
  MutexLock lock(staging_mutex_);
  size_t moved = 0;
  while (outcome == Outcome::kMoves && moved < runs.size() && swapIn(granule, runs[moved])) ++moved;
  const std::optional<Home> home = homeOf(granule);
  const bool stays_closed = home && frozen(*home);
  for (const Run& run : runs.subspan(moved)) {
    // Of a spoiled one some may be gone.
    forEachDirect(run.first, run.first + run.count, [&](PageIndex first, uint64_t count) {
      if (stays_closed) return;
      [[maybe_unused]] const Status open = core_.barrier->writeProtect(
          core_.space->addressOf(first), Bytes(count * kPageSize), Wake::kYes);
    });
    core_.barrier->wake(core_.space->addressOf(run.first), Bytes(run.count * kPageSize));
    core_.budget.discharge(PageCount(run.count));
  }
  return moved;
}

void GranuleMover::close(const GranuleLock& granule, Promotion& promotion) {
  promotion.closed = closeRuns(granule, {promotion.runs.data(), promotion.count}, Beyond::kNever);
  if (promotion.closed == 0) return;
  promotion.place = 0;
  while (closing_[promotion.place].load(std::memory_order_relaxed) != kNoGranule) ++promotion.place;
  TP_CHECK_OP(promotion.place, <, kMostClosing);
  // Relaxed, here and below: an entry is written and read under the lock of its granule alone;
  // others only see that it is not theirs.
  closing_[promotion.place].store(GranuleIndex(granule).value(), std::memory_order_relaxed);
  closing_count_.fetch_add(1, std::memory_order_relaxed);
}

bool GranuleMover::lookForPins() {
  const Nanoseconds start = core_.clock->now();
  const bool pins = core_.mayPinPages();
  look_cost_ = core_.clock->now() - start;
  return pins;
}

size_t GranuleMover::finish(const GranuleLock& granule, const Promotion& promotion, bool pinned) {
  if (promotion.closed == 0) return 0;
  const std::span<const Run> runs(promotion.runs.data(), promotion.closed);
  const uint64_t found = closing_[promotion.place].exchange(kNoGranule, std::memory_order_relaxed);
  closing_count_.fetch_sub(1, std::memory_order_relaxed);
  if (pinned) countHeld(runs);
  // Rights may have changed meanwhile, which leaves the mapping as it is.
  const bool good = !pinned && (found & kSpoiled) == 0 &&
                    std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
                      return movable(granule, run.first, run.count);
                    });
  const size_t moved = finishRuns(granule, runs, good ? Outcome::kMoves : Outcome::kStays);
  // Also who met another of its pages, frozen since a fork(), and was put off.
  core_.barrier->wake(core_.space->addressOf(granule), Bytes(kGranuleSize));
  return moved;
}

std::atomic<uint64_t>* GranuleMover::closingEntry(const GranuleLock& granule) {
  if (closing_count_.load(std::memory_order_relaxed) == 0) return nullptr;
  for (auto& entry : closing_) {
    const uint64_t value = entry.load(std::memory_order_relaxed);
    if (value != kNoGranule && (value & ~kSpoiled) == GranuleIndex(granule).value()) return &entry;
  }
  return nullptr;
}

void GranuleMover::spoil(const GranuleLock& granule) {
  if (std::atomic<uint64_t>* const entry = closingEntry(granule)) {
    entry->fetch_or(kSpoiled, std::memory_order_relaxed);
  }
}

}  // namespace tidepool
