// SPDX-License-Identifier: Apache-2.0
// What a program finds open when it is executed by one that runs under Tidepool.
#pragma once

namespace tidepool::os {

/// The name of the memory file in which a tree of processes keeps account of its local memory.
inline constexpr const char* kAccountMemfdName = "tidepool-budget";

/// The descriptor of that file; -1: none came over exec. Who closes it begins a tree of its own with
/// the programs that it executes.
int inheritedAccount();

}  // namespace tidepool::os
