// SPDX-License-Identifier: Apache-2.0
// `tidepool run`: from flags to a checked plan, and from the plan to the program. The plan is a
// plain value, so that --dry-run shows exactly what would be done.
#pragma once

#include <string>
#include <vector>

#include "runtime/options.h"
#include "shim/cli/arguments.h"

namespace tidepool::cli {

/// A failure with the exit code it ends the command with.
struct CommandError : std::runtime_error {
  CommandError(int code, const std::string& text) : runtime_error(text), exit_code(code) {}
  int exit_code;
};

struct PlannedTier {
  FarSpec spec;
  std::string text;
  std::string detail;
};

struct Plan {
  Options options;
  std::vector<PlannedTier> tiers;
  std::string program;                 // as found
  std::vector<std::string> arguments;  // argv, argv[0] as typed
  std::string preload;                 // LD_PRELOAD, complete
  std::string conf;                    // TIDEPOOL_CONF, complete
  std::string rows;                    // TIDEPOOL_ROWS; empty: off
  std::string python_path;             // PYTHONPATH, complete, where rows are on
  std::string rows_off;                // why they are off; empty where they are not
  std::vector<std::string> warnings;
};

/// Checks everything. Throws UsageError (exit 2) or CommandError (125, 126, 127).
Plan makePlan(const Arguments& arguments);

/// Returns only for --dry-run.
int run(const Arguments& arguments);

}  // namespace tidepool::cli
