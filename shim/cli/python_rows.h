// SPDX-License-Identifier: Apache-2.0
// Whether Python programs of a run get the embedding tables of PyTorch by rows, and the environment
// that has them do so (allocator/python/unchanged).
#pragma once

#include <string>

#include "shim/cli/launch.h"

namespace tidepool::cli {

/// Fills in the plan's rows, python_path and rows_off, once its options are settled. `preload` is
/// where the preload library is: what rows need is installed beside it. Throws UsageError for a bad
/// --rows or --rows-ahead.
void planRows(const Arguments& arguments, const std::string& preload, Plan& plan);

}  // namespace tidepool::cli
