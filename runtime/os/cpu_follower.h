// SPDX-License-Identifier: Apache-2.0
// Keeps a service thread on the processor of the thread it serves. Waking another, idle processor
// costs several times what serving a fault does (20-50 us in a virtual machine, docs/design-notes),
// so the service goes where the faults are.
#pragma once

#include <sched.h>

#include "runtime/base/unique_fd.h"

namespace tidepool::os {

/// Used by one thread, for itself.
class CpuFollower {
 public:
  /// Remembers the calling thread's own affinity, to go back to.
  CpuFollower();

  /// Tells that `thread` (of this process) waits to be served. Looks at where it ran once in a
  /// while, and binds the calling thread there after two equal looks; frees it again when several
  /// threads, on several processors, have faults. `strayed`: it seems to have gone elsewhere, so
  /// that one look is enough, now.
  void served(int thread, bool strayed);
  /// Tells, in place of served(), that several threads wait at the same time. The calling thread
  /// soon belongs to none of them: they run side by side, and it is woken once for many.
  void servedSeveral();
  /// Where the calling thread is bound, or -1.
  int bound() const { return bound_; }

 private:
  static constexpr unsigned kLookEvery = 16;
  static constexpr unsigned kMostPatience = 64;

  /// Whether the hint at hand is to be followed.
  bool listens();
  void rate(bool right);

  /// Processor that the thread last ran on, -1 if unknown.
  int cpuOf(int thread);
  void bind(int cpu);

  cpu_set_t allowed_;
  // Kept open: one that is opened for each look would take the number that the program's next
  // descriptor is to have.
  UniqueFd stat_;
  int stat_of_ = 0;
  unsigned served_ = 0;
  unsigned several_ = 0;  // times in a row
  // A look costs as much as serving a fault does: after hints that were wrong, more and more of
  // them are passed over.
  unsigned deaf_for_ = 0;
  unsigned patience_ = 1;
  int last_cpu_ = -1;
  int last_thread_ = 0;
  int bound_ = -1;
};

/// Keeps a thread off the processor that a follower has chosen, so that the two work side by side.
/// Used by one thread, for itself.
class CpuAvoider {
 public:
  CpuAvoider();
  /// -1: none to avoid. Nothing changes where no other processor is allowed.
  void avoid(int cpu);

 private:
  cpu_set_t allowed_;
  int avoided_ = -1;
};

}  // namespace tidepool::os
