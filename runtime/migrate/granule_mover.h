// SPDX-License-Identifier: Apache-2.0
// Moves whole granules between local DRAM and direct tiers, under the program's feet: accesses
// meanwhile wait in a fault and then find the same bytes. Callers hold the granule's lock, which
// also serialises the use of a staging granule. Never touches managed memory.
#pragma once

#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/migrate/core.h"

namespace tidepool {

class GranuleMover {
 public:
  /// Errors: kNoMemory.
  static Result<std::unique_ptr<GranuleMover>> create(Core& core);
  ~GranuleMover();

  /// Puts a granule, fresh or with local pages, into the first direct tier with room. False when
  /// there is none, or the granule cannot move now (partly allocated, pinned, not plain memory).
  bool placeFar(GranuleIndex granule);

 private:
  struct Home {
    uint8_t tier;
    FrameIndex first;
  };
  GranuleMover(Core& core, uintptr_t staging) : core_(core), staging_(staging) {}
  /// Pages of the granule that are local; nullopt-like ~0 when one is in a state that cannot go.
  uint64_t countLocal(GranuleIndex granule) const;
  bool findHome(Home* home) const;
  bool copyLocalPages(GranuleIndex granule, const Home& home) TP_REQUIRES(staging_mutex_);
  bool copyRun(PageIndex first, uint64_t count, std::byte* to) TP_REQUIRES(staging_mutex_);
  void undo(GranuleIndex granule) TP_REQUIRES(staging_mutex_);

  Core& core_;
  Mutex staging_mutex_;  // taken after a granule's lock
  uintptr_t staging_;    // one granule
};

}  // namespace tidepool
