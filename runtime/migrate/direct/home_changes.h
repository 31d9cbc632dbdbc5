// SPDX-License-Identifier: Apache-2.0
// What happens to a home as such: after a fork() others hold it too, its tier is drained, it is out
// of reach for a while, or lost.
#pragma once

#include "runtime/migrate/direct/promoter.h"

namespace tidepool {

/// Has no state of its own: any thread that holds the granule's lock.
class HomeChanges {
 public:
  HomeChanges(Core& core, ClosingGranules& closing, GranuleHomes& homes, TransferArea& transfer,
              WholeGranules& whole, Promoter& promoter)
      : core_(core),
        closing_(closing),
        homes_(homes),
        transfer_(transfer),
        whole_(whole),
        promoter_(promoter) {}

  // Homes that several processes hold are frozen: write-protected in all of them, until a process
  // that writes has made itself a copy, or is the last.

  /// Write-protects all direct pages, in the forking process and again in the child. The caller
  /// holds all granules' locks. Errors: the kernel cannot.
  Status freeze();
  /// Lets the program write to a direct page that is write-protected. False if that took local
  /// memory beyond the budget, for want of room in the tier.
  bool thaw(const GranuleLock& granule, PageIndex page);

  // A tier is suspended when this process has no right to it, for the time being. Who touches it
  // waits; in shared memory its mappings stay, armed and empty, so that no map entry is needed.

  /// Of these tiers, a bit by number. From its return on nobody reads or writes there. The caller
  /// holds all granules' locks, which all do who know of a place there.
  void suspend(uint32_t tiers);
  /// Lets those go on who wait. What was held is armed as before when it is touched (admit()).
  /// Takes granules' locks.
  void resume(uint32_t tiers);
  /// Lets the program touch a page that it found held, after resume().
  void admit(const GranuleLock& granule, PageIndex page);

  /// Moves the granule's home out of the tier, with all that lies there: to another direct tier, or
  /// to local memory if the budget is not exceeded already; it then may be, by one granule, which a
  /// fetch tier takes from there. True once nothing of it is there.
  /// What lies whole moves whole.
  bool vacate(const GranuleLock& granule, uint8_t tier);
  /// The tier's frames from `from` on are gone: direct pages there are lost, and poisoned; local
  /// pages have no home there any more. Returns how many were lost.
  uint64_t lose(const GranuleLock& granule, uint8_t tier, FrameIndex from);

 private:
  void hold(uintptr_t address, Bytes size);
  void mapAgain(const GranuleLock& granule, const Home& home);
  /// Makes writers to its direct pages wait. False if that cannot be, or devices may write there.
  bool closeToWriters(const GranuleLock& granule);
  bool vacateWhole(const GranuleLock& granule, const Home& home);
  void promoteAll(const GranuleLock& granule);
  /// Of a granule that has to come in: a fetch tier takes as much from local memory.
  Budget::Beyond beyondForOne() const;

  Core& core_;
  ClosingGranules& closing_;
  GranuleHomes& homes_;
  TransferArea& transfer_;
  WholeGranules& whole_;
  Promoter& promoter_;
};

}  // namespace tidepool
