// SPDX-License-Identifier: Apache-2.0
// Local and untouched pages go to direct tiers, in runs within a granule, under the program's feet.
#pragma once

#include "runtime/migrate/direct/whole_granules.h"

namespace tidepool {

/// Has no state of its own: any thread that holds the granule's lock.
class Demoter {
 public:
  Demoter(Core& core, GranuleHomes& homes, TransferArea& transfer, WholeGranules& whole)
      : core_(core), homes_(homes), transfer_(transfer), whole_(whole) {}

  /// Puts what is fresh or local in the granule of `page` into a direct tier, as far as it is plain
  /// memory. False when `page` is not there then: no tier has room, or it cannot move now.
  bool placeFar(const GranuleLock& granule, PageIndex page);
  /// Moves local pages [first, first + pages) of one granule to its home, which it is given if it
  /// has none. Stops at a page that cannot move; returns how many moved.
  uint64_t demote(const GranuleLock& granule, PageIndex first, uint64_t pages);

 private:
  /// demote() for pages that are all movable.
  uint64_t demoteMovable(const GranuleLock& granule, PageIndex first, uint64_t pages);

  Core& core_;
  GranuleHomes& homes_;
  TransferArea& transfer_;
  WholeGranules& whole_;
};

}  // namespace tidepool
