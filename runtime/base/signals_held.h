// SPDX-License-Identifier: Apache-2.0
// Holding back all signals of the calling thread, where a handler of the program's may find locks
// taken that it needs: it may allocate, map memory, or copy the process.
#pragma once

#include <csignal>

namespace tidepool {

/// Returns what the thread had blocked before. libc's own signals (cancellation, setuid) pass.
inline sigset_t holdSignals() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  return before;
}

/// Those that came meanwhile are handled before it returns.
inline void releaseSignals(const sigset_t& before) {
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace tidepool
