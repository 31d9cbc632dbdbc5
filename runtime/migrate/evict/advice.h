// SPDX-License-Identifier: Apache-2.0
// What the program says of its own future with madvise(2): cold, page out, will need. The program's
// threads only look and queue; the migrator moves out, the fault service brings in. Advice that
// finds a full queue, or no room, is ignored. Thread-safe. Addresses are page-aligned and in the
// managed space.
#pragma once

#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/shared_policy.h"
#include "runtime/migrate/direct/demoter.h"
#include "runtime/migrate/evict/evictor.h"

namespace tidepool {

class Advice {
 public:
  Advice(Core& core, SharedPolicy& policy, Demoter& demoter)
      : core_(core), policy_(policy), demoter_(demoter) {}

  /// On the program's threads. Local pages of the range are the next to go, when some have to.
  void cold(uintptr_t address, Bytes size);
  /// Local pages of the range go to far memory soon, wanted or not.
  void pageOut(uintptr_t address, Bytes size);
  /// Pages on fetch tiers, or on their way there, are brought in, as far as there is room.
  void willNeed(uintptr_t address, Bytes size);

  /// Moves out a piece of what was advised to go. True if there is more to do at once. On the
  /// migrator's thread.
  bool moveOutSome(Evictor& evictor);

 private:
  bool active() const { return core_.tiers.count() > 0 && !core_.fork.detached(); }
  PageRun pagesOf(uintptr_t address, Bytes size) const;
  bool goesToFetchTier(PageIndex page, PageWord word) const;
  /// The part from its first page of a wanted state on; nothing if there is none. What has none is
  /// not worth a place in the queue, nor a service thread's time.
  PageRun fromFirst(PageRun part, bool (*wanted)(PageState)) const;
  /// Hands those of the piece's pages that a fetch tier takes to the policy; returns how many.
  PageCount giveUp(PageRun piece);
  void demoteHome(PageRun piece);

  Core& core_;
  SharedPolicy& policy_;
  Demoter& demoter_;
};

}  // namespace tidepool
