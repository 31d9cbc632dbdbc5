// SPDX-License-Identifier: Apache-2.0
// The interposed ways out of a process that run no destructors, and our destructor for exit().
// Each writes the statistics, then leaves as the program asked.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "shim/export.h"
#include "shim/next_definition.h"
#include "shim/stats_at_exit.h"

namespace tidepool {
namespace {

[[noreturn]] void leave(int status) {
  writeStatsAtExit();
  for (;;) syscall(SYS_exit_group, status);
}

__attribute__((destructor)) void writeStatsAtUnload() { writeStatsAtExit(); }

}  // namespace
}  // namespace tidepool

extern "C" {

TP_EXPORT void _exit(int status) { tidepool::leave(status); }
TP_EXPORT void _Exit(int status) noexcept { tidepool::leave(status); }

// at_quick_exit handlers must still run, so the real function does the rest (it ends in libc's own
// _exit, not in ours).
TP_EXPORT void quick_exit(int status) noexcept {
  tidepool::writeStatsAtExit();
  if (auto* const real = tidepool::nextDefinition<void(int)>("quick_exit")) real(status);
  tidepool::leave(status);
}

}  // extern "C"
