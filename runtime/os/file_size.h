// SPDX-License-Identifier: Apache-2.0
// Sizes of memory files under RLIMIT_FSIZE (ulimit -f), which judges, mail servers and CI set. It
// counts for memfds too, and the kernel does not merely refuse what goes beyond: it sends SIGXFSZ,
// which ends a program that knows of no large file. Free functions; thread-safe, no allocation.
#pragma once

#include "runtime/base/units.h"

namespace tidepool::os {

/// The largest file that this process may make.
Bytes largestFile();

/// ftruncate() that sends no signal: false, and errno (EFBIG for the limit).
bool setFileSize(int fd, Bytes size);

/// After one has failed, for the end of a message: what the limit has to do with it, or "".
const char* fileLimitAdvice(int os_error);

}  // namespace tidepool::os
