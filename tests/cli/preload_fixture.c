// SPDX-License-Identifier: Apache-2.0
// Stands in for libtidepool-preload.so: appends its process id and TIDEPOOL_CONF to the file named
// by CLI_FIXTURE_LOG when it is loaded.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void report(void) {
  const char* path = getenv("CLI_FIXTURE_LOG");
  const char* conf = getenv("TIDEPOOL_CONF");
  if (path == NULL) return;
  FILE* log = fopen(path, "a");
  if (log == NULL) return;
  fprintf(log, "%d %s\n", (int)getpid(), conf == NULL ? "(unset)" : conf);
  fclose(log);
}
