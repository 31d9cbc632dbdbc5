// SPDX-License-Identifier: Apache-2.0
// `fabricmgr device discover`: CXL switches that this very machine can give orders to, and what is
// behind their ports. Without a manager.
#pragma once

#include <CLI/CLI.hpp>

namespace tidepool::cxl::fmapi {

/// Adds the command to `app`'s command `device`, which must be there; when it runs, its exit code
/// goes to `exit_code`.
void addCommand(CLI::App& app, int* exit_code);

}  // namespace tidepool::cxl::fmapi
