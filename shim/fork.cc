// SPDX-License-Identifier: Apache-2.0
// One table of what has to be whole in a copy of the process, in lock order. It runs in the copying
// thread.
#include "shim/fork.h"

#include <pthread.h>

#include <iterator>
#include <utility>

#include "allocator/arena/heap_metadata.h"
#include "runtime/base/signals_held.h"
#include "runtime/runtime.h"
#include "shim/engine.h"
#include "shim/internal_heap.h"
#include "shim/internal_scope.h"
#include "shim/managed_heap.h"
#include "shim/surrender.h"

namespace tidepool {
namespace {

// Of the fork() under way. The engine is locked meanwhile, so there is one at a time.
constinit ThreadMode mode_before = ThreadMode::kUnbound;
constinit bool managed = false;
constinit sigset_t signals_before{};

void callIfSet(void (*hook)()) {
  if (hook != nullptr) hook();
}

enum class In : uint8_t {
  kFork,           // fork() alone: a signal handler that interrupted malloc may copy the process
  kManagedFork,    // that, if the engine runs
  kManagedCopies,  // every copy, if it runs
  kCopies,
};

struct Participant {
  In in;
  void (*prepare)(ForkKind kind);
  void (*parent)();
  void (*child)();
};

// Prepared from the first to the last, and let go from the last to the first, on both sides: an
// outer lock comes before those that are taken under it. The child is one thread: the one that took
// the locks, so it may unlock them.
constexpr Participant kParticipants[] = {
    // The engine's start.
    {In::kFork, [](ForkKind) { managed = lockEngine(); }, unlockEngine, unlockEngineInChild},
    // The runtime's first part: libc's lock of its streams comes before malloc's.
    {In::kManagedFork, Runtime::aboutToFork, [] {}, [] {}},
    {In::kManagedFork, [](ForkKind) { lockArenaTable(); }, unlockArenaTable,
     unlockArenaTableInChild},
    // Whatever is allocated from here on, on the way into the child above all, is Tidepool's own.
    {In::kManagedFork,
     [](ForkKind) { mode_before = std::exchange(t_thread_mode, ThreadMode::kInternal); },
     [] { t_thread_mode = mode_before; }, [] { t_thread_mode = mode_before; }},
    // jemalloc's own locks, held while extent hooks call the runtime.
    {In::kManagedFork, [](ForkKind) { callIfSet(heap_fork_hooks.prepare); },
     [] { callIfSet(heap_fork_hooks.parent); }, [] { callIfSet(heap_fork_hooks.child); }},
    {In::kManagedCopies, [](ForkKind) { lockSurrendering(); }, unlockSurrendering,
     unlockSurrendering},
    {In::kCopies, Runtime::beforeFork, Runtime::afterForkInParent, Runtime::afterForkInChild},
    {In::kCopies, [](ForkKind) { internalHeap().lockForFork(); },
     [] { internalHeap().unlockAfterFork(); }, [] { internalHeap().unlockAfterFork(); }},
};

/// Other copies than fork() are made of managed processes alone (copiesMemory()).
bool takesPart(const Participant& participant, ForkKind kind) {
  const In in = participant.in;
  if (kind != ForkKind::kFork) return in == In::kManagedCopies || in == In::kCopies;
  return managed || in == In::kFork || in == In::kCopies;
}

void prepareAll(ForkKind kind) {
  for (const Participant& participant : kParticipants) {
    if (takesPart(participant, kind)) participant.prepare(kind);
  }
}

void letGoAll(ForkKind kind, void (*Participant::*side)()) {
  for (size_t i = std::size(kParticipants); i-- > 0;) {
    if (takesPart(kParticipants[i], kind)) (kParticipants[i].*side)();
  }
}

// Signals wait until all locks are given back: a handler may copy the process itself.
void prepareFork() {
  const sigset_t signals = holdSignals();
  prepareAll(ForkKind::kFork);
  signals_before = signals;
}

template <void (*Participant::*kSide)()>
void afterFork() {
  // The next fork() may begin once the engine is let go.
  const sigset_t signals = signals_before;
  letGoAll(ForkKind::kFork, kSide);
  releaseSignals(signals);
}

}  // namespace

SilentFork::SilentFork(ForkKind kind)
    : kind_(kind), prepared_(t_thread_mode != ThreadMode::kInternal) {
  if (!prepared_) return;
  signals_ = holdSignals();
  InternalScope scope;
  prepareAll(kind);
}

void SilentFork::inParent() {
  if (!prepared_) return;
  letGoAll(kind_, &Participant::parent);
  releaseSignals(signals_);
}

void SilentFork::inChild() {
  InternalScope scope;
  if (!prepared_) return Runtime::afterUnpreparedFork();
  letGoAll(kind_, &Participant::child);
  renewArenaTableInChild();
  releaseSignals(signals_);
}

// Registration fails only for lack of memory; fork() is then as unsafe as it is for threads in any
// program without handlers, and still right for a program of one thread.
void installForkHandlers() {
  Runtime::leaveForksToCaller();
  static_cast<void>(
      pthread_atfork(prepareFork, afterFork<&Participant::parent>, afterFork<&Participant::child>));
}

}  // namespace tidepool
