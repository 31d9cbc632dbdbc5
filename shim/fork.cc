// SPDX-License-Identifier: Apache-2.0
// The fork handlers, outermost lock first: the engine's start; if it runs, libc's lock of its
// streams, the table of arenas, jemalloc's own locks (held while extent hooks call the runtime),
// the table of surrendered ranges; then the runtime's; then the internal heap. The handlers run in
// the forking thread.
#include "shim/fork.h"

#include <pthread.h>

#include "allocator/arena/heap_metadata.h"
#include "runtime/base/signals_held.h"
#include "runtime/runtime.h"
#include "shim/engine.h"
#include "shim/internal_heap.h"
#include "shim/internal_scope.h"
#include "shim/managed_heap.h"
#include "shim/surrendered.h"

namespace tidepool {
namespace {

// Whatever the handlers allocate, on the way into the child above all, is Tidepool's own. The
// engine is locked meanwhile, so there is one such thread at a time.
constinit ThreadMode mode_before = ThreadMode::kUnbound;
constinit bool managed = false;
constinit sigset_t signals_before{};

// Signals wait until all locks are given back: a handler may copy the process itself.
void lockOuter() {
  const sigset_t signals = holdSignals();
  managed = lockEngine();
  signals_before = signals;
  if (!managed) return;
  Runtime::aboutToFork(ForkKind::kFork);
  lockArenaTable();
  mode_before = t_thread_mode;
  t_thread_mode = ThreadMode::kInternal;
  if (heap_fork_hooks.prepare) heap_fork_hooks.prepare();
  lockSurrendered();
}

void unlockOuterInParent() {
  if (managed) {
    unlockSurrendered();
    if (heap_fork_hooks.parent) heap_fork_hooks.parent();
    t_thread_mode = mode_before;
    unlockArenaTable();
  }
  const sigset_t signals = signals_before;
  unlockEngine();
  releaseSignals(signals);
}

// The child is one thread: the one that took the locks, so it may unlock them.
void unlockOuterInChild() {
  if (managed) {
    unlockSurrendered();
    if (heap_fork_hooks.child) heap_fork_hooks.child();
    t_thread_mode = mode_before;
    unlockArenaTableInChild();
  }
  unlockEngineInChild();
  releaseSignals(signals_before);
}

void lockInner() { internalHeap().lockForFork(); }
void unlockInner() { internalHeap().unlockAfterFork(); }

}  // namespace

SilentFork::SilentFork(ForkKind kind) : prepared_(t_thread_mode != ThreadMode::kInternal) {
  if (!prepared_) return;
  signals_ = holdSignals();
  InternalScope scope;
  lockSurrendered();
  Runtime::beforeFork(kind);
  lockInner();
}

void SilentFork::inParent() {
  if (!prepared_) return;
  unlockInner();
  Runtime::afterForkInParent();
  unlockSurrendered();
  releaseSignals(signals_);
}

void SilentFork::inChild() {
  InternalScope scope;
  if (!prepared_) return Runtime::afterUnpreparedFork();
  unlockInner();
  Runtime::afterForkInChild();
  unlockSurrendered();
  renewArenaTableInChild();
  releaseSignals(signals_);
}

// Registration fails only for lack of memory; fork() is then as unsafe as it is for threads in any
// program without handlers, and still right for a program of one thread.
void installInnerForkHandlers() {
  static_cast<void>(pthread_atfork(lockInner, unlockInner, unlockInner));
}

void installOuterForkHandlers() {
  static_cast<void>(pthread_atfork(lockOuter, unlockOuterInParent, unlockOuterInChild));
}

}  // namespace tidepool
