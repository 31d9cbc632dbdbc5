// SPDX-License-Identifier: Apache-2.0
// `fabricmgr memserver`: the command line's description and the daemon's main. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::memserver {

/// Adds the subcommand to `app`; when it is chosen and parsed, `*exit_code` receives the outcome.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::memserver
