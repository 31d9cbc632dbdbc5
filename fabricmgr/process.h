// SPDX-License-Identifier: Apache-2.0
// What the daemons and commands of `fabricmgr` share: exit codes, signals, descriptor limits.
#pragma once

#include <csignal>
#include <initializer_list>

namespace tidepool {

/// Exit codes of the whole program, as the design's section 5 lists them.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNotFoundCode = 3,
  kRefusedCode = 4,
  kUnreachablePeer = 5,
  kConflictCode = 6,
  kTimedOutCode = 7,
};

/// Blocks the signals in this and all later threads; sigwait() then takes them. SIGPIPE is ignored.
sigset_t blockSignals(std::initializer_list<int> numbers);
/// One descriptor a connection: the default soft limit is far below what the kernel allows.
void raiseDescriptorLimit();

}  // namespace tidepool
