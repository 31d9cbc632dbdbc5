// SPDX-License-Identifier: Apache-2.0
// fork(): every lock is taken before it and given back on both sides, so that the child never
// inherits one in the hands of a thread it does not have.
#pragma once

#include <csignal>

#include "runtime/base/fork_kind.h"

namespace tidepool {

/// Call before the program can register its own handlers: those may touch memory that nobody brings
/// in once ours have run.
void installForkHandlers();

/// The process is about to be copied by other means than fork(), of which libc tells nobody: what
/// has to be done around that, on both sides, by the copying thread. The heap's locks are not
/// taken, nor that of the table of arenas, which is held while some of them are: a signal handler
/// that interrupted malloc may copy the process, and a child of several threads may not call malloc
/// then, with libc's heap neither. It may fork. Async-signal-safe as far as the
/// program's side goes.
class SilentFork {
 public:
  explicit SilentFork(ForkKind kind);
  void inParent();
  void inChild();

 private:
  const ForkKind kind_;
  // This thread was inside Tidepool, and holds who knows what.
  const bool prepared_;
  // What the thread had blocked. Signals wait until all locks are given back: a handler may copy
  // the process itself.
  sigset_t signals_;
};

}  // namespace tidepool
