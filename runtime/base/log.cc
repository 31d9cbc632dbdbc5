// SPDX-License-Identifier: Apache-2.0
// Log lines and failed checks: format into a stack buffer, then a single write(2) to stderr.
#include "runtime/base/log.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdlib>

#include "runtime/base/check.h"
#include "runtime/base/format.h"
#include "runtime/base/raw_calls.h"
#include "runtime/base/write_signals.h"

namespace tidepool {

void logLine(const char* format, ...) {
  char line[512];
  size_t used = formatText(line, sizeof line, "tidepool: ");
  va_list args;
  va_start(args, format);
  used += formatTextV(line + used, sizeof line - used - 1, format, args);
  va_end(args);
  line[used++] = '\n';
  // A message that cannot be written has nowhere else to go.
  const WriteSignalsHeld held;
  [[maybe_unused]] const ssize_t written = raw::write(STDERR_FILENO, line, used);
}

void checkFailed(const char* file, int line, const char* condition, uint64_t left, uint64_t right) {
  logLine("%s:%d: broken invariant: %s (left %llu, right %llu); please report this", file, line,
          condition, static_cast<unsigned long long>(left), static_cast<unsigned long long>(right));
  abort();
}

}  // namespace tidepool
