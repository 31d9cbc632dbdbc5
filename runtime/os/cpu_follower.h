// SPDX-License-Identifier: Apache-2.0
// Keeps a service thread on the processor of the thread it serves. Waking another, idle processor
// costs several times what serving a fault does (20-50 us in a virtual machine, docs/design-notes),
// so the service goes where the faults are. Used by one thread, for itself.
#pragma once

#include <sched.h>

namespace tidepool::os {

class CpuFollower {
 public:
  /// Remembers the calling thread's own affinity, to go back to.
  CpuFollower();

  /// Tells that `thread` (of this process) waits to be served. Looks at where it ran once in a
  /// while, and binds the calling thread there after two equal looks; frees it again when faults
  /// come from several processors.
  void served(int thread);

 private:
  static constexpr unsigned kLookEvery = 16;

  void bind(int cpu);

  cpu_set_t allowed_;
  unsigned served_ = 0;
  int last_ = -1;
  int bound_ = -1;
};

}  // namespace tidepool::os
