// SPDX-License-Identifier: Apache-2.0
// dup2 and dup3 onto each number up to the limit and beyond: a program that lays its own
// descriptors out as it likes must not hit what keeps its memory.
#include <sys/resource.h>

#include "tests/hazards/descriptors.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  struct rlimit limit = {1000, 1000};
  EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int source = open("/dev/null", O_RDONLY);
  EXPECT(source == 3);
  int made = 0, refused = 0;
  for (int fd = 4; fd < 3000; ++fd) {
    errno = 0;
    const int got = fd % 2 ? dup2(source, fd) : dup3(source, fd, O_CLOEXEC);
    made += got == fd;
    refused += got == -1 && errno == EBADF;
  }
  printf("%d made, %d refused\n", made, refused);
  worksOn(data, size, 1);
  EXPECT(fcntl(source, F_DUPFD, 500) == -1 && errno == EMFILE);
  for (int fd = 4; fd < 1000; ++fd) EXPECT(close(fd) == 0);
  EXPECT(fcntl(source, F_DUPFD_CLOEXEC, 500) == 500);
  worksOn(data, size, 1);
  return done("fds_dup2_over");
}
