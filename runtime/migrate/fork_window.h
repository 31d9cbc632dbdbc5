// SPDX-License-Identifier: Apache-2.0
// What the C library touches in the child of a fork() before our handler has put a fault service
// behind the child's memory: a far page would read as zeros there. So these pages are made local
// before, and stay so because nothing is evicted while the service threads stand still. Signals are
// held off: a handler would touch anything. Used by one forking thread at a time.
#pragma once

#include <csignal>

#include "runtime/migrate/core.h"

namespace tidepool {

class ForkWindow {
 public:
  explicit ForkWindow(Core& core) : core_(core) {}

  /// Before the service threads are stopped: brings the pages in.
  void touch();
  /// After that: whether all of them are local.
  bool isLocal();

  void holdSignals();
  void releaseSignals();

 private:
  void touchOwnStack();
  Core& core_;
  sigset_t saved_{};
};

}  // namespace tidepool
