// SPDX-License-Identifier: Apache-2.0
// Anchors pages for the kernel's sake (runtime/space/anchored_pages.h), on the program's threads.
// What is in a direct tier is brought in first, whatever the budget, unless devices may write to
// it: then it stays there. Thread-safe; takes one granule lock at a time, and touches no page.
#pragma once

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/direct/promoter.h"

namespace tidepool {

class Anchors {
 public:
  Anchors(Core& core, Promoter& promoter) : core_(core), promoter_(promoter) {}

  /// Bytes inside the space, until they are released: their pages do not leave local memory any
  /// more, once a touch has brought them there.
  void keep(uintptr_t address, Bytes size);
  /// Until letGo() of the same address; a wait for its word lies between. False: there is no need.
  bool hold(uintptr_t address);
  void letGo(uintptr_t address);

 private:
  bool detached() const { return core_.fork.detached(); }
  void bringIn(const GranuleLock& granule, PageIndex page);

  Core& core_;
  Promoter& promoter_;
};

}  // namespace tidepool
