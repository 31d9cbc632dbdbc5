// SPDX-License-Identifier: Apache-2.0
// What a program finds open when it is executed by one that runs under Tidepool.
#pragma once

namespace tidepool::os {

/// The name of the memory file in which a tree of processes keeps account of its local memory.
inline constexpr const char* kAccountMemfdName = "tidepool-budget";

/// The variable by which a process tells whether it is the one that `tidepool run` became: its
/// value is the process id.
inline constexpr const char* kLaunchedVariable = "TIDEPOOL_RUN";

/// The descriptor of that file; -1: none came over exec. Who closes it begins a tree of its own
/// with the programs that it executes.
int inheritedAccount();

}  // namespace tidepool::os
