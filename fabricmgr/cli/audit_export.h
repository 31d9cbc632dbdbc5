// SPDX-License-Identifier: Apache-2.0
// `fabricmgr audit export`: the audit as lines for other programs, on stdout or as a new file that
// is there as a whole, or not at all. Single-threaded.
#pragma once

#include <string>

#include "fabricmgr/cli/run.h"

namespace tidepool::cli {

struct ExportWish {
  std::string since;             // a sequence, or a time as --help says; empty: all that is kept
  std::string format = "jsonl";  // or csv
  std::string out;               // the file to be made; empty: stdout
};

/// The exit code. Throws UsageError.
int runExport(const ExportWish& wish, const Settings& settings);

}  // namespace tidepool::cli
