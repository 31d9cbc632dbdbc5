// SPDX-License-Identifier: Apache-2.0
// Numbers of descriptors are as without Tidepool: the first is 3, the lowest free one is taken,
// select() reaches them all, and as many can be open as the limit says.
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>

#include "tests/hazards/descriptors.h"

int main(void) {
  EXPECT(open("/dev/null", O_RDONLY) == 3);
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  int numbers = 0;
  for (int round = 0; round < 3000; ++round) {
    EXPECT(close(STDIN_FILENO) == 0);
    numbers += open("/dev/null", O_RDONLY);
    if (round % 100 == 0)
      EXPECT(wrongFrom(data + (size_t)round * 2048, kPage, 1, (size_t)round * 256) == 0);
  }
  EXPECT(numbers == 0);
  int ends[2];
  EXPECT(pipe(ends) == 0 && ends[0] == 4 && ends[1] == 5);
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ends[0] == 6 && ends[1] == 7);
  struct rlimit limit = {200, 200};
  EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  int opened = 0;
  while (dup(3) >= 0) ++opened;
  printf("%d more opened, errno %d, %d open\n", opened, errno, countOpen());
  worksOn(data, size, 1);
  EXPECT(write(ends[1], "x", 1) == 1);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(ends[0], &set);
  EXPECT(select(200, &set, NULL, NULL, NULL) == 1 && FD_ISSET(ends[0], &set));
  return done("fds_numbers");
}
