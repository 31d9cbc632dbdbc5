// SPDX-License-Identifier: Apache-2.0
// Finding the program to run, and whether a preloaded library can work in it at all. Read-only.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace tidepool::cli {

/// PROG as the shell would find it: by path if it has a slash, else along PATH.
/// Errors: kNotFound (exit 127), kPermission (found, but not executable: exit 126).
Result<std::string> findProgram(const std::string& name);

/// Looks into the file (and, for a script, into its interpreter). Errors: kUnsupported with the
/// reason why LD_PRELOAD cannot reach it: static, set-uid, another architecture or C
/// library, sanitizer; or why it cannot in this environment (LD_AUDIT).
Status checkPreloadable(const std::string& path);

/// The preload library: $TIDEPOOL_PRELOAD, else beside this command, else where it is installed.
/// Errors: kNotFound with the places looked at; kInvalidArgument for a path that LD_PRELOAD cannot
/// say (it separates by blanks and colons).
Result<std::string> findPreloadLibrary();

}  // namespace tidepool::cli
