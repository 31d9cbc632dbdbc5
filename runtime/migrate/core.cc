// SPDX-License-Identifier: Apache-2.0
// Error reporting for the service threads. Allocates nothing; thread-safe.
#include "runtime/migrate/core.h"

#include <cstdarg>
#include <cstdio>

#include "runtime/base/log.h"

namespace tidepool {

void reportError(Core& core, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  logLine("%s", text);
  const uint64_t number = core.stats->error_count.fetch_add(1, std::memory_order_relaxed);
  snprintf(core.stats->errors[number % kMaxErrors], sizeof text, "%s", text);
}

}  // namespace tidepool
