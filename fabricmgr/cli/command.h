// SPDX-License-Identifier: Apache-2.0
// The operator's part of `fabricmgr`: every verb of verbs.h, and `watch`. Single-threaded.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::cli {

/// Adds the commands to `app`; when one is chosen and parsed, `*exit_code` receives the outcome.
void addCommands(CLI::App& app, int* exit_code);

}  // namespace tidepool::cli
