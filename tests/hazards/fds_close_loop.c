// SPDX-License-Identifier: Apache-2.0
// The oldest way of a daemon: close() of every number there may be, standard ones included; and
// what /proc/self/fd lists.
#include <dirent.h>

#include "tests/hazards/descriptors.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  const int out = dup(STDOUT_FILENO);
  for (int i = 0; i < 10; ++i) EXPECT(open("/dev/null", O_RDONLY) >= 0);
  int closed = 0;
  for (int fd = 0; fd < 100000; ++fd) {
    if (fd != out) closed += close(fd) == 0;
  }
  EXPECT(open("/dev/null", O_RDONLY) == 0);
  EXPECT(dup2(out, STDOUT_FILENO) == STDOUT_FILENO && dup2(out, STDERR_FILENO) == STDERR_FILENO);
  printf("%d closed, %d open\n", closed, countOpen());
  worksOn(data, size, 1);
  DIR* listed = opendir("/proc/self/fd");
  closed = 0;
  for (struct dirent* entry; (entry = readdir(listed)) != NULL;) {
    const int fd = atoi(entry->d_name);
    if (fd > STDERR_FILENO && fd != dirfd(listed)) closed += close(fd) == 0;
  }
  closedir(listed);
  printf("%d more closed, %d open\n", closed, countOpen());
  worksOn(data, size, 1);
  return done("fds_close_loop");
}
