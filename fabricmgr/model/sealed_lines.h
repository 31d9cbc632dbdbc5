// SPDX-License-Identifier: Apache-2.0
// Text files of records that are only appended to: one a line, with a checksum in front. It tells
// whole lines from others, and guards against no one. Stateless.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace tidepool::fabric {

/// `line`, which has no end of line in it, as the file has it.
std::string sealedLine(std::string_view line);

/// Hands every line of `text` to `take`, in their order. What follows the last end of line was cut
/// off by a crash, and was never answered for: it does not count. Any other line with a wrong
/// checksum is damage, after which nothing may be written. Errors: kCorrupt for that: its text
/// names `path` and the line, and ends with `advice`, what somebody should do; and for a whole line
/// that `take` can make no sense of (false).
Status readSealedLines(std::string_view text, const std::string& path, const char* advice,
                       const std::function<bool(std::string_view)>& take);

}  // namespace tidepool::fabric
