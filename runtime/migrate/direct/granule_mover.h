// SPDX-License-Identifier: Apache-2.0
// Moves pages between local DRAM and direct tiers, under the program's feet: accesses meanwhile
// wait in a fault, or go on reading, and find the same bytes. A granule has one home in a tier,
// kept while any of its pages is there (kDirect) or came from there (kLocal with kFlagShadow);
// pages move in runs within it. Never touches managed memory.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/base/mapping.h"
#include "runtime/base/mutex.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/granule_scan.h"
#include "runtime/os/mapping_swap.h"

namespace tidepool {

class GranuleMover {
 public:
  /// Errors: kNoMemory.
  static Result<std::unique_ptr<GranuleMover>> create(Core& core);
  /// In a child of fork(): arms its staging area with the child's own port.
  Status renew();

  /// Puts what is fresh or local in the granule of `page` into a direct tier, as far as it is plain
  /// memory. False when `page` is not there then: no tier has room, or it cannot move now.
  bool placeFar(const GranuleLock& granule, PageIndex page);
  /// Moves local pages [first, first + count) of one granule to its home, which it is given if it
  /// has none. Stops at a page that cannot move; returns how many moved.
  uint64_t demote(const GranuleLock& granule, PageIndex first, uint64_t count);
  /// Pages in a row within one granule.
  struct Run {
    PageIndex first;
    uint64_t count;
  };
  /// Moves runs of kDirect pages of one granule to local memory, as many as the budget has room
  /// for, none when pages may be pinned for DMA. Returns how many runs moved, from the first on.
  size_t promote(const GranuleLock& granule, std::span<const Run> runs) {
    return promote(granule, runs, Beyond::kNever);
  }

  // The same in three steps, so that many granules share one look at the process's descriptors: all
  // are closed to writers, then is looked, then each is moved or opened again. For the migrator's
  // thread alone, which holds no granule's lock from one step to the next.

  /// Runs of one granule.
  struct Promotion {
    std::array<Run, kPagesPerGranule / 2> runs;
    size_t count = 0;
    size_t closed = 0;  // of these, from the first on
    size_t place = 0;
  };
  static constexpr size_t kMostClosing = 16;
  /// So many are worth one look: more, the more descriptors there are, up to kMostClosing.
  size_t granulesALook() const;
  void close(const GranuleLock& granule, Promotion& promotion);
  /// Whether pages may be pinned that were closed before.
  bool lookForPins();
  /// Returns how many runs moved, from the first on. None if anything else has been done to the
  /// granule's direct pages since close().
  size_t finish(const GranuleLock& granule, const Promotion& promotion, bool pinned);
  /// True between close() and finish(), which wakes who would write.
  bool isClosing(const GranuleLock& granule) { return closingEntry(granule) != nullptr; }
  /// To be called when direct pages of the granule were erased, opened to writers or mapped anew.
  void spoil(const GranuleLock& granule);

  /// Bytes moved since the start, in both directions.
  Bytes moved() const { return Bytes(moved_.load(std::memory_order_relaxed)); }

  /// Moves the granule's home out of the tier, with all that lies there: to another direct tier, or
  /// to local memory if the budget is not exceeded already; it then may be, by one granule, which a
  /// fetch tier takes from there. True once nothing of it is there.
  /// What lies whole moves whole.
  bool vacate(const GranuleLock& granule, uint8_t tier);
  /// The tier's frames from `from` on are gone: direct pages there are lost, and poisoned; local
  /// pages have no home there any more. Returns how many were lost.
  uint64_t lose(const GranuleLock& granule, uint8_t tier, FrameIndex from);

  // After a fork() several processes hold the same homes. These are frozen: write-protected in all
  // of them, until a process that writes has made itself a copy, or is the last.

  /// Write-protects all direct pages, in the forking process and again in the child. The caller
  /// holds all granules' locks. Errors: the kernel cannot.
  Status freeze();
  /// Lets the program write to a direct page that is write-protected. False if that took local
  /// memory beyond the budget, for want of room in the tier.
  bool thaw(const GranuleLock& granule, PageIndex page);
  /// Brings a direct page in, whatever the budget. False if it cannot be.
  bool bringIn(const GranuleLock& granule, PageIndex page);
  /// Brings in all direct pages of [first, end), a part of the granule, with the rights they have,
  /// whatever the budget, for somebody who takes them out of our care. False if one cannot
  /// be: where whole granules are mapped, that is, or for want of map entries.
  bool bringInAll(const GranuleLock& granule, PageIndex first, PageIndex end);
  /// The pages that can have their place in a direct tier: plain memory, readable and writable.
  PageSet movablePages(const GranuleLock& granule) const;
  /// True if other processes hold this home as well.
  bool frozen(uint8_t tier, FrameIndex home) const;
  /// Frees the granule's home if no page needs it any more. `home` is its first frame.
  void releaseHomeIfUnused(const GranuleLock& granule, uint8_t tier, FrameIndex home);

  // Devices such as device-DAX are mapped in whole granules, and a part of such a mapping can be
  // neither taken away nor protected: what moves there moves as a whole, and comes back as a whole.

  /// True if any tier is of that kind. The caller holds a granule's lock, or the one of the set of
  /// tiers, or is the migrator.
  bool mapsWholeGranules() const;
  /// True if the granule lies in such a tier: all of its pages do.
  bool liesWhole(const GranuleLock& granule) const;

  /// Moves all of a granule that liesWhole() to local memory, which then has no home any more.
  /// False if the budget has no room for it, pages may be pinned for DMA, or not all of it is
  /// plain.
  bool promoteWhole(const GranuleLock& granule) { return promoteWhole(granule, Beyond::kNever); }
  bool canPromoteWhole() const { return swap_ != nullptr; }
  /// To be called when a tier has come, by the migrator's thread, which alone moves granules whole.
  void tierCame();

  struct Home {
    uint8_t tier;
    FrameIndex first;
  };
  /// The granule's home, if it has one.
  std::optional<Home> homeOf(const GranuleLock& granule) const;

 private:
  GranuleMover(Core& core, Mapping area)
      : core_(core), area_(std::move(area)), staging_(reinterpret_cast<uintptr_t>(area_.data())) {
    for (auto& entry : closing_) entry.store(kNoGranule, std::memory_order_relaxed);
  }
  /// Whether that holds for all of these pages of one granule.
  bool movable(const GranuleLock& granule, PageIndex first, uint64_t count) const;
  /// demote() for pages that are all movable.
  uint64_t demoteMovable(const GranuleLock& granule, PageIndex first, uint64_t count);
  bool mapsWhole(const Home& home) const {
    return core_.tiers.direct(home.tier)->mapUnit() > PageCount(1);
  }
  /// Puts all that is in the granule, and what is still to come, into a home that is mapped as a
  /// whole. Returns how many local pages went there; nothing if the granule is as it was.
  std::optional<uint64_t> placeWhole(const GranuleLock& granule, const Home& home);
  bool frozen(const Home& home) const { return frozen(home.tier, home.first); }
  /// Calls `act(first, count)` for the runs of direct pages in [from, end).
  template <typename Act>
  void forEachDirect(PageIndex from, PageIndex end, Act act) const;
  /// Sees to it that nobody else holds the granule's home, by a copy if need be. False if there is
  /// no room for one; else `home` is the one it has now.
  bool ownHome(const GranuleLock& granule, Home& home);
  /// Gives the granule the home `to`, with copies of its direct pages, which nobody may write to
  /// meanwhile.
  void moveHome(const GranuleLock& granule, const Home& home, const Home& to);
  /// Makes writers to its direct pages wait. False if that cannot be, or devices may write there.
  bool closeToWriters(const GranuleLock& granule);
  void openToWriters(const GranuleLock& granule);
  /// Whether the budget may be exceeded.
  enum class Beyond : uint8_t { kNever, kOnce };
  /// Of a granule that has to come in: a fetch tier takes as much from local memory.
  Beyond beyondForOne() const;
  size_t promote(const GranuleLock& granule, std::span<const Run> runs, Beyond beyond);
  /// Makes writers wait, and takes room from the budget. Returns for how many, from the first on.
  size_t closeRuns(const GranuleLock& granule, std::span<const Run> runs, Beyond beyond);
  /// Pages that would have been promoted if none might be pinned.
  void countHeld(std::span<const Run> runs);
  enum class Outcome : uint8_t { kMoves, kStays };
  size_t finishRuns(const GranuleLock& granule, std::span<const Run> runs, Outcome outcome);
  std::atomic<uint64_t>* closingEntry(const GranuleLock& granule);
  bool promoteWhole(const GranuleLock& granule, Beyond beyond);
  bool vacateWhole(const GranuleLock& granule, const Home& home);
  /// Whether all that the program may do with the granule can be done from another place, too.
  bool movesWhole(const GranuleLock& granule, const Home& to) const;
  /// Copies what lies whole to `to`, and maps that in its place.
  bool moveWhole(const GranuleLock& granule, const Home& home, const Home& to);
  /// Takes what lies whole out of use: from here on whoever uses it waits, and no device has it.
  /// False if that cannot be; then it is as it was.
  bool takeWhole(const GranuleLock& granule, const Home& home) TP_REQUIRES(staging_mutex_);
  /// Lends from the budget, or exceeds it if that may be.
  bool charge(PageCount pages, Beyond beyond);
  void promoteAll(const GranuleLock& granule);
  /// Its local pages have no home any more.
  void forgetHome(const GranuleLock& granule);
  void loseRun(const GranuleLock& granule, PageIndex first, uint64_t count);
  /// What a home has to take: all of a granule at once will do, or it has to be single pages.
  enum class Takes : uint8_t { kGranule, kPages };
  /// A free home in the tier that the granule is placed in, or else in any direct tier.
  std::optional<Home> findHome(GranuleIndex granule, Takes takes = Takes::kGranule) const;
  std::optional<Home> findHomeIn(uint8_t number, Takes takes) const;
  void adopt(const GranuleLock& granule, const Home& home);
  bool copyOut(const GranuleLock& granule, PageIndex first, uint64_t count, std::byte* to)
      TP_REQUIRES(staging_mutex_);
  void putBack(const GranuleLock& granule, PageIndex first, uint64_t count)
      TP_REQUIRES(staging_mutex_);
  bool swapIn(const GranuleLock& granule, const Run& run) TP_REQUIRES(staging_mutex_);
  bool mapHome(const GranuleLock& granule, PageIndex first, uint64_t count, const Home& home);

  void countMoved(StatCounter& moves, StatCounter& bytes, uint64_t pages);

  Core& core_;
  std::atomic<uint64_t> moved_{0};
  Mutex staging_mutex_;  // taken after a granule's lock
  Mapping area_;
  uintptr_t staging_;  // two granules: one for pages on their way out, one for the way in
  /// Null without tiers that are mapped whole, and in a child of fork(), which has none at first.
  std::unique_ptr<os::MappingSwap> swap_;
  Nanoseconds look_cost_;  // of the last look
  static constexpr uint64_t kNoGranule = ~uint64_t{0}, kSpoiled = uint64_t{1} << 63;
  std::array<std::atomic<uint64_t>, kMostClosing> closing_;
  std::atomic<size_t> closing_count_{0};
};

template <typename Act>
void GranuleMover::forEachDirect(PageIndex from, PageIndex end, Act act) const {
  for (PageIndex page = from; page < end;) {
    const PageWord word = core_.space->word(page);
    uint64_t run = 1;
    if (word.state() == PageState::kDirect) {
      while (page + run < end && core_.space->word(page + run).state() == PageState::kDirect) ++run;
      act(page, run);
    }
    page = page + run;
  }
}

}  // namespace tidepool
