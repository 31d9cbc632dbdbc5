// SPDX-License-Identifier: Apache-2.0
// `fabricmgr memserver`: the command line's description and the daemon's main. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::memserver {

/// Exit codes of the whole program, as the design's section 5 lists them.
enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kUnreachablePeer = 5 };

/// Adds the subcommand to `app`; when it is chosen and parsed, `*exit_code` receives the outcome.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::memserver
