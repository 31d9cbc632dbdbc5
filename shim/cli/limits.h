// SPDX-License-Identifier: Apache-2.0
// Resource limits (ulimit) that keep a program from being managed, or its far memory from being
// had. Asked before a program starts (`run`) and by `doctor`. Reads only.
#pragma once

#include <vector>

#include "runtime/options.h"
#include "shim/cli/doctor.h"

namespace tidepool::cli {

/// One finding for each limit: address space, data, file sizes; kFail where a program with these
/// options would not be managed.
std::vector<Finding> examineLimits(const Options& options);

}  // namespace tidepool::cli
