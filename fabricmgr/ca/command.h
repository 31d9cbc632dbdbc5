// SPDX-License-Identifier: Apache-2.0
// `fabricmgr ca`: the command line of the authority for labs. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::ca {

/// Adds the subcommand to `app`; when it is chosen and parsed, `*exit_code` receives the outcome.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::ca
