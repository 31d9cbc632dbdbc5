// SPDX-License-Identifier: Apache-2.0
// The commands `fabricmgr cxl ...`: CXL memory of this very machine, without a manager.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::cxl {

/// Adds the commands to `app`; when one runs, its exit code goes to `exit_code`.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::cxl
