// SPDX-License-Identifier: Apache-2.0
// A question to the host's agent, for the command line: is it there, and how is it?
#pragma once

#include <span>

#include "runtime/base/result.h"

namespace tidepool {

/// Writes what the agent at `path` (empty: where it usually is) says of itself, a JSON object, to
/// `out`, NUL-terminated. Waits two seconds at most. Errors: kUnreachable, kPermission, kTimedOut,
/// kNoSpace (`out` is too small).
Status agentStatus(const char* path, std::span<char> out);

}  // namespace tidepool
