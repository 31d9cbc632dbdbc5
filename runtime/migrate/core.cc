// SPDX-License-Identifier: Apache-2.0
// Error reporting for the service threads. Allocates nothing; thread-safe.
#include "runtime/migrate/core.h"

#include <cstdarg>
#include <cstdio>

#include "runtime/base/log.h"
#include "runtime/stats/stats_region.h"

namespace tidepool {

void reportError(Core& core, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  logLine("%s", text);
  addStatsError(*core.stats, "%s", text);
}

}  // namespace tidepool
