// SPDX-License-Identifier: Apache-2.0
// What the C library touches in the child of a fork() before our handler has put a fault service
// behind the child's memory: a far page would read as zeros there. So these pages are made local
// before, and stay so because nothing is evicted while the service threads stand still. Signals are
// held off: a handler would touch anything. Used by one forking thread at a time.
#pragma once

#include <csignal>

#include "runtime/migrate/core.h"
#include "runtime/migrate/granule_mover.h"

namespace tidepool {

class ForkWindow {
 public:
  ForkWindow(Core& core, GranuleMover& mover) : core_(core), mover_(mover) {}

  /// Before the service threads are stopped: brings the pages in.
  void touch();
  /// After that: whether all of them are local.
  bool isLocal();

  void holdSignals();
  void releaseSignals();

 private:
  void touchOwnStack();
  void touchPage(PageIndex page);
  static bool touchPiece(void* self, uintptr_t address, size_t size);
  static bool pieceIsLocal(void* self, uintptr_t address, size_t size);
  Core& core_;
  GranuleMover& mover_;
  sigset_t saved_{};
};

}  // namespace tidepool
