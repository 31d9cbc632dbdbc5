// SPDX-License-Identifier: Apache-2.0
// `tidepool checkpoint`: what checkpoints of embedding tables a directory has, and whether they are
// whole. Reads only.
#pragma once

#include "shim/cli/arguments.h"

namespace tidepool::cli {

/// Exit status: 0 if all that was looked at can be restored, else 1.
int checkpoint(const Arguments& arguments);

}  // namespace tidepool::cli
