// SPDX-License-Identifier: Apache-2.0
// Once-only guard around the statistics writer. A child of fork() or vfork() must not overwrite its
// parent's file, hence the check of the process id.
#include "shim/stats_at_exit.h"

#include <unistd.h>

#include <atomic>

#include "shim/engine.h"
#include "shim/internal_scope.h"

namespace tidepool {
namespace {

constinit std::atomic<bool> stats_done{false};

}  // namespace

void writeStatsAtExit() {
  if (managed_runtime == nullptr || engineOptions().stats_file[0] == '\0') return;
  if (getpid() != enginePid()) return;
  // Relaxed: the flag alone decides who acts.
  if (stats_done.exchange(true, std::memory_order_relaxed)) return;
  InternalScope scope;
  // The writer (runtime/stats) is called here, with managed_runtime->stats() and
  // engineOptions().stats_file.
}

}  // namespace tidepool
