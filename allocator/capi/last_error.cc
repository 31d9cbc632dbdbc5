// SPDX-License-Identifier: Apache-2.0
// Results as the C API gives them: the numbers of ErrorCode, and CLOSED. The text is kept in plain
// thread-local memory, so that failing allocates nothing.
#include "allocator/capi/last_error.h"

#include <cstring>

#include "runtime/base/format.h"

namespace tidepool {
namespace {

struct LastError {
  tidepool_status status = TIDEPOOL_OK;
  char text[sizeof(Error)] = {};
};

constinit thread_local LastError t_last_error;

#define TP_SAME(c, cc) static_assert(static_cast<int>(ErrorCode::cc) == TIDEPOOL_##c)
TP_SAME(INVALID_ARGUMENT, kInvalidArgument);
TP_SAME(NOT_FOUND, kNotFound);
TP_SAME(NO_MEMORY, kNoMemory);
TP_SAME(NO_SPACE, kNoSpace);
TP_SAME(PERMISSION, kPermission);
TP_SAME(UNSUPPORTED, kUnsupported);
TP_SAME(UNREACHABLE, kUnreachable);
TP_SAME(STALE_EPOCH, kStaleEpoch);
TP_SAME(CONFLICT, kConflict);
TP_SAME(TIMED_OUT, kTimedOut);
TP_SAME(CORRUPT, kCorrupt);
TP_SAME(LOST, kLost);
TP_SAME(IO, kIo);
TP_SAME(INTERNAL, kInternal);
TP_SAME(REFUSED, kRefused);
#undef TP_SAME

tidepool_status keep(tidepool_status status, const char* text) {
  t_last_error.status = status;
  formatText(t_last_error.text, sizeof t_last_error.text, "%s", text);
  return status;
}

}  // namespace

tidepool_status report(const Error& error) {
  return keep(static_cast<tidepool_status>(error.code()), error.text());
}

tidepool_status report(const Status& status) {
  return status ? TIDEPOOL_OK : report(status.error());
}

tidepool_status reportClosed(const char* what) {
  char text[80];
  formatText(text, sizeof text, "the %s was closed or destroyed before, or never was one", what);
  return keep(TIDEPOOL_CLOSED, text);
}

tidepool_status reportNull(const char* parameter) {
  char text[80];
  formatText(text, sizeof text, "%s is NULL", parameter);
  return keep(TIDEPOOL_INVALID_ARGUMENT, text);
}

}  // namespace tidepool

using namespace tidepool;

extern "C" {

const char* tidepool_status_name(tidepool_status status) {
  const auto number = numberOf(status);
  if (number == TIDEPOOL_OK) return "ok";
  if (number == TIDEPOOL_CLOSED) return "closed";
  return errorCodeName(static_cast<ErrorCode>(number));
}

tidepool_status tidepool_error_status(void) { return t_last_error.status; }
const char* tidepool_error_text(void) { return t_last_error.text; }
const char* tidepool_version(void) { return TIDEPOOL_LIBRARY_VERSION; }

}  // extern "C"
