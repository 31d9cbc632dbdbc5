// SPDX-License-Identifier: Apache-2.0
// `tidepool doctor`: a list of checks, each ok, warn or fail, with the command that mends it.
#pragma once

#include <string>
#include <vector>

#include "shim/cli/arguments.h"

namespace tidepool::cli {

enum class Verdict { kOk, kWarn, kFail };

struct Finding {
  std::string name;  // stable, for JSON
  Verdict verdict = Verdict::kOk;
  std::string detail;
  std::string mend;            // a command, or empty
  std::string transport = {};  // of a memory server's pages: "verbs" or "tcp"; empty otherwise
};

std::vector<Finding> examineKernel();
std::vector<Finding> examineMemory();
std::vector<Finding> examineDevices();

/// Exit code 0 when nothing failed, 1 otherwise. Throws UsageError.
int doctor(const Arguments& arguments);

}  // namespace tidepool::cli
