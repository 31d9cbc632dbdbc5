// SPDX-License-Identifier: Apache-2.0
// Error construction: formatting into the fixed buffer. Thread-safe; allocates nothing.
#include "runtime/base/result.h"

#include <cerrno>
#include <cstring>

#include "runtime/base/format.h"

namespace tidepool {
namespace {

/// Appends ": " and the description of `os_error` to the text already in `buffer`.
void appendErrno(char* buffer, size_t size, int os_error) {
  const size_t used = strlen(buffer);
  formatText(buffer + used, size - used, ": %s", errnoText(os_error));
}

}  // namespace

const char* errorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid-argument";
    case ErrorCode::kNotFound:
      return "not-found";
    case ErrorCode::kNoMemory:
      return "no-memory";
    case ErrorCode::kNoSpace:
      return "no-space";
    case ErrorCode::kPermission:
      return "permission";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kUnreachable:
      return "unreachable";
    case ErrorCode::kStaleEpoch:
      return "stale-epoch";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kTimedOut:
      return "timed-out";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kLost:
      return "lost";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kRefused:
      return "refused";
  }
  return "unknown";
}

Error Error::make(ErrorCode code, const char* format, ...) {
  Error error(code, 0);
  va_list args;
  va_start(args, format);
  formatTextV(error.text_, sizeof error.text_, format, args);
  va_end(args);
  return error;
}

Error Error::fromErrno(ErrorCode code, int os_error, const char* format, ...) {
  Error error(code, os_error);
  va_list args;
  va_start(args, format);
  formatTextV(error.text_, sizeof error.text_, format, args);
  va_end(args);
  appendErrno(error.text_, sizeof error.text_, os_error);
  return error;
}

tl::unexpected<Error> fail(ErrorCode code, const char* format, ...) {
  char text[232];
  va_list args;
  va_start(args, format);
  formatTextV(text, sizeof text, format, args);
  va_end(args);
  return tl::unexpected(Error::make(code, "%s", text));
}

tl::unexpected<Error> failErrno(ErrorCode code, const char* format, ...) {
  const int os_error = errno;
  char text[232];
  va_list args;
  va_start(args, format);
  formatTextV(text, sizeof text, format, args);
  va_end(args);
  return tl::unexpected(Error::fromErrno(code, os_error, "%s", text));
}

}  // namespace tidepool
