// SPDX-License-Identifier: Apache-2.0
// Direct pages come to local memory, in runs within a granule, under the program's feet: writers
// wait behind the write barrier while the frames are copied, readers never do.
#pragma once

#include <array>
#include <span>

#include "runtime/migrate/direct/whole_granules.h"

namespace tidepool {

/// Every call holds the granule's lock.
class Promoter {
 public:
  Promoter(Core& core, ClosingGranules& closing, GranuleHomes& homes, TransferArea& transfer,
           WholeGranules& whole)
      : core_(core), closing_(closing), homes_(homes), transfer_(transfer), whole_(whole) {}

  /// Pages in a row within one granule.
  struct Run {
    PageIndex first;
    uint64_t count;
  };
  /// Moves runs of kDirect pages of one granule to local memory, as many as the budget has room
  /// for, none when pages may be pinned for DMA. Returns how many runs moved, from the first on.
  size_t promote(const GranuleLock& granule, std::span<const Run> runs,
                 Budget::Beyond beyond = Budget::Beyond::kNever);

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
  /// So many are worth one look: more, the more descriptors there are, up to
  /// ClosingGranules::kMost.
  size_t granulesALook() const;
  void close(const GranuleLock& granule, Promotion& promotion);
  /// Whether pages may be pinned that were closed before.
  bool lookForPins();
  /// Returns how many runs moved, from the first on. None if anything else has been done to the
  /// granule's direct pages since close().
  size_t finish(const GranuleLock& granule, const Promotion& promotion, bool pinned);

  /// Brings a direct page in, whatever the budget. False if it cannot be.
  bool bringIn(const GranuleLock& granule, PageIndex page);
  /// Brings in all direct pages of [first, end), a part of the granule, with the rights they have,
  /// whatever the budget, for somebody who takes them out of our care. False if one cannot
  /// be: where whole granules are mapped, that is, or for want of map entries.
  bool bringInAll(const GranuleLock& granule, PageIndex first, PageIndex end);

 private:
  /// Makes writers wait, and takes room from the budget. Returns for how many, from the first on.
  size_t closeRuns(const GranuleLock& granule, std::span<const Run> runs, Budget::Beyond beyond);
  /// Pages that would have been promoted if none might be pinned.
  void countHeld(std::span<const Run> runs);
  enum class Outcome : uint8_t { kMoves, kStays };
  size_t finishRuns(const GranuleLock& granule, std::span<const Run> runs, Outcome outcome);

  Core& core_;
  ClosingGranules& closing_;
  GranuleHomes& homes_;
  TransferArea& transfer_;
  WholeGranules& whole_;
  Nanoseconds look_cost_;  // of the last look
};

}  // namespace tidepool
