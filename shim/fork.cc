// SPDX-License-Identifier: Apache-2.0
// The fork handlers, in lock order: the arena table, jemalloc's locks (held while extent hooks call the runtime),
// the table of huge blocks, the internal heap. The handlers run in the forking thread.
#include "shim/fork.h"

#include <pthread.h>

#include "shim/heap_metadata.h"
#include "shim/internal_heap.h"
#include "shim/internal_scope.h"
#include "shim/managed_heap.h"

namespace tidepool {
namespace {

void beforeFork() {
  lockArenaTable();
  if (heap_fork_hooks.prepare) heap_fork_hooks.prepare();
  lockHugeTable();
  internalHeap().lockForFork();
}

void afterForkInParent() {
  internalHeap().unlockAfterFork();
  unlockHugeTable();
  if (heap_fork_hooks.parent) heap_fork_hooks.parent();
  unlockArenaTable();
}

// The child is one thread: the one that took the locks, so it may unlock them.
void afterForkInChild() {
  internalHeap().unlockAfterFork();
  unlockHugeTable();
  if (heap_fork_hooks.child) heap_fork_hooks.child();
  unlockArenaTable();
}

}  // namespace

void installForkHandlers() {
  // It fails only for lack of memory; fork() then works as in a program with one thread.
  static_cast<void>(pthread_atfork(beforeFork, afterForkInParent, afterForkInChild));
}

}  // namespace tidepool
