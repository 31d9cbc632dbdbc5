// SPDX-License-Identifier: Apache-2.0
// Invariant checks, on in every build. A broken invariant aborts with file, line and values; bad
// input must never reach one. Writes straight to stderr and allocates nothing.
#pragma once

#include <cstdint>

namespace tidepool {

[[noreturn, gnu::cold]] void checkFailed(const char* file, int line, const char* condition,
                                         uint64_t left, uint64_t right);

}  // namespace tidepool

#define TP_CHECK(condition)                          \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::tidepool::checkFailed(__FILE__, __LINE__, #condition, 0, 0))

/// Compares two integral values and prints both when the check fails.
#define TP_CHECK_OP(left, op, right)                                           \
  (__builtin_expect((left)op(right), 1)                                        \
       ? static_cast<void>(0)                                                  \
       : ::tidepool::checkFailed(__FILE__, __LINE__, #left " " #op " " #right, \
                                 static_cast<uint64_t>(left), static_cast<uint64_t>(right)))
