// SPDX-License-Identifier: Apache-2.0
// execve(2) and execveat(2) as a program makes them by syscall(). Async-signal-safe.
#pragma once

namespace tidepool {

/// -1 with errno set; does not return else.
long executeByNumber(int folder, const char* path, char* const* arguments, char* const* environment,
                     int flags);

}  // namespace tidepool
