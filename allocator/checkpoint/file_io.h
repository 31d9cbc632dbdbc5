// SPDX-License-Identifier: Apache-2.0
// Reads and writes of whole buffers at a place in a file, and errno as errors that say what to do
// next. Thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace tidepool {

/// Writes everything; `parts` is used up. Errors: kNoSpace, kIo.
Status writeAt(int fd, uint64_t offset, std::span<iovec> parts, const std::string& file);
/// Reads exactly so much. Errors: kCorrupt when the file ends before, kIo.
Status readAt(int fd, uint64_t offset, std::span<std::byte> to, const std::string& file);
/// kCorrupt: the file is shorter than it should be.
tl::unexpected<Error> endsTooEarly(const std::string& file);
/// errno as an error: `what` is "cannot write" or the like.
Error fileError(const char* what, const std::string& file);

}  // namespace tidepool
