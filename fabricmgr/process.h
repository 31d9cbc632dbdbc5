// SPDX-License-Identifier: Apache-2.0
// What the daemons and commands of `fabricmgr` share: exit codes, signals, descriptor limits, and
// what a service tells systemd.
#pragma once

#include <csignal>
#include <initializer_list>
#include <string>

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

/// "READY=1", "STATUS=...", "WATCHDOG=1": one a line, as sd_notify(3) has them. Does nothing where
/// there is no service manager (NOTIFY_SOCKET). Thread-safe.
void notifyServiceManager(const std::string& message);

}  // namespace tidepool
