// SPDX-License-Identifier: Apache-2.0
// One-line messages to stderr, prefixed "tidepool: ". One write(2) each, no allocation, no lock:
// safe in service threads, in constructors and in atexit handlers.
#pragma once

namespace tidepool {

/// `format` as for printf, without the newline.
[[gnu::format(printf, 1, 2)]] void logLine(const char* format, ...);

}  // namespace tidepool
