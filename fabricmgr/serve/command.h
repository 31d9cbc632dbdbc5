// SPDX-License-Identifier: Apache-2.0
// `fabricmgr serve`: the fabric manager's command line and main. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::serve {

/// Adds the subcommand to `app`; when it is chosen and parsed, `*exit_code` receives the outcome.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::serve
