// SPDX-License-Identifier: Apache-2.0
// One budget for a tree of processes (TreeAccount says which). Each publishes what it holds and
// what it would gain by more, and takes its limit from the sums (TreeShare). Memory that parent and
// child still share since a fork is divided between them. Used by the migrator's thread.
#pragma once

#include "runtime/migrate/core/core.h"

namespace tidepool {

class TreeBudget {
 public:
  explicit TreeBudget(Core& core) : core_(core) {}

  /// What this process may hold, given that it holds `mine` now, with so much of it in staging: the
  /// budget if it is alone.
  Bytes share(Bytes mine, PageCount staged, Nanoseconds now);
  /// As of the last share().
  bool alone() const { return alone_; }

 private:
  static constexpr uint32_t kAll = 1024;
  void weigh(Nanoseconds now);
  TreeShare::Seen seen(PageCount staged) const;

  Core& core_;
  TreeShare share_;
  bool alone_ = true;
  uint32_t own_ = kAll;  // of what this process holds, in 1/1024
  Nanoseconds next_weighing_;
};

}  // namespace tidepool
