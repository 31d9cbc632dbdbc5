// SPDX-License-Identifier: Apache-2.0
// Errors as values. An Error holds a code, the errno behind it and one line that says what failed,
// on which object, and what to do next. It owns no heap memory, so service threads may make one.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <tl/expected.hpp>

namespace tidepool {

/// Stable across releases: the C API, exit codes and HTTP statuses are tables over these.
enum class ErrorCode : uint16_t {
  kInvalidArgument = 1,
  kNotFound = 2,
  kNoMemory = 3,  // the operating system refused memory
  kNoSpace = 4,   // a tier, region or budget is full
  kPermission = 5,
  kUnsupported = 6,  // this kernel or device cannot do it
  kUnreachable = 7,  // peer or daemon away
  kStaleEpoch = 8,
  kConflict = 9,
  kTimedOut = 10,
  kCorrupt = 11,  // malformed input or frame
  kLost = 12,     // data that cannot be fetched any more
  kIo = 13,
  kInternal = 14,
  kRefused = 15,  // it would hurt somebody: the text says whom; force does it all the same
};

/// A short lower-case name such as "no-space", for logs and JSON.
const char* errorCodeName(ErrorCode code);

class Error {
 public:
  /// `format` as for printf; text beyond the fixed buffer is cut.
  [[gnu::format(printf, 2, 3)]] static Error make(ErrorCode code, const char* format, ...);
  /// As make(), and appends ": " and the text of `os_error` (an errno value).
  [[gnu::format(printf, 3, 4)]] static Error fromErrno(ErrorCode code, int os_error,
                                                       const char* format, ...);
  ErrorCode code() const { return code_; }
  int osError() const { return os_error_; }
  const char* text() const { return text_; }

 private:
  Error(ErrorCode code, int os_error) : code_(code), os_error_(os_error) {}
  ErrorCode code_;
  int os_error_;
  char text_[232] = {};
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[gnu::format(printf, 2, 3)]] tl::unexpected<Error> fail(ErrorCode code, const char* format, ...);
[[gnu::format(printf, 2, 3)]] tl::unexpected<Error> failErrno(ErrorCode code, const char* format,
                                                              ...);

}  // namespace tidepool

/// Returns the error of `expression` to the caller, or goes on.
#define TP_TRY(expression)                                            \
  do {                                                                \
    auto tp_try_result = (expression);                                \
    if (!tp_try_result) return tl::unexpected(tp_try_result.error()); \
  } while (false)
