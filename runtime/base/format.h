// SPDX-License-Identifier: Apache-2.0
// printf-like formatting that service threads may use. libc's own may not: a program can hook it
// (libquadmath does, through register_printf_specifier) or give it a locale, and it then reads
// tables that the program allocated, which are managed memory (invariant I2). No allocation, no
// locale; thread-safe.
#pragma once

#include <cstdarg>
#include <cstddef>

namespace tidepool {

/// Writes at most `size` bytes with the final NUL (size > 0); what does not fit is cut. Knows %s
/// (also %.*s and %.80s), %c, %d, %i, %u, %x with h, l, ll and z, and %%; anything else is copied
/// as it is. Returns the length that was written.
[[gnu::format(printf, 3, 4)]] size_t formatText(char* out, size_t size, const char* format, ...);
size_t formatTextV(char* out, size_t size, const char* format, va_list args);

/// The description of an errno value in the C locale; never null.
const char* errnoText(int os_error);

}  // namespace tidepool
