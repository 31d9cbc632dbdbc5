// SPDX-License-Identifier: Apache-2.0
// A small limit on descriptors that the program was started with: it can open as many as without
// Tidepool, once it is running.
#include <sys/resource.h>

#include "tests/hazards/descriptors.h"

extern char** environ;

int main(int argc, char** argv) {
  if (argc == 1) {
    // The hard limit stays: it is the usual case that only the soft one is small.
    struct rlimit limit;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 20;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    char* arguments[] = {argv[0], (char*)"limited", NULL};
    execve("/proc/self/exe", arguments, environ);
    return 99;
  }
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  int opened = 0;
  while (open("/dev/null", O_RDONLY) >= 0) ++opened;
  struct rlimit limit;
  EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  printf("%d opened, limit %lu\n", opened, (unsigned long)limit.rlim_cur);
  worksOn(data, size, 1);
  return done("rlimit_nofile");
}
