// SPDX-License-Identifier: Apache-2.0
// What fork() needs of the runtime. Before: the service threads stand still and every lock is held,
// so that the child's copy is whole. After, in the parent: on it goes. In the child, which has no
// service threads and no userfaultfd: it keeps what was local as ordinary memory, its new memory is
// ordinary too, and what was far is taken out of its reach, because a touch must end in SIGSEGV
// rather than in zeros or in a store to its parent's memory (docs/limits.md).
#pragma once

#include "runtime/migrate/core.h"
#include "runtime/migrate/shared_policy.h"

namespace tidepool {

class ForkGuard {
 public:
  ForkGuard(Core& core, SharedPolicy& policy) : core_(core), policy_(policy) {}
  void prepare() TP_NO_THREAD_SAFETY;
  void parent() TP_NO_THREAD_SAFETY;
  void child() TP_NO_THREAD_SAFETY;

 private:
  static constexpr int kServiceThreads = 2;
  void unlockAll() TP_NO_THREAD_SAFETY;
  void hideFarMemory();
  Core& core_;
  SharedPolicy& policy_;
};

}  // namespace tidepool
