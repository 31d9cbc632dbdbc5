// SPDX-License-Identifier: Apache-2.0
// close_range(2): all, a part, marking instead of closing, and with a table of its own.
#include <linux/close_range.h>

#include "tests/hazards/descriptors.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  for (int i = 0; i < 10; ++i) EXPECT(open("/dev/null", O_RDONLY) >= 0);
  EXPECT(close_range(5, 7, 0) == 0);
  printf("%d open\n", countOpen());
  EXPECT(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
  EXPECT(fcntl(3, F_GETFD) == FD_CLOEXEC);
  worksOn(data, size, 1);
  EXPECT(close_range(3, ~0U, 0) == 0);
  printf("%d open\n", countOpen());
  worksOn(data, size, 1);
  errno = 0;
  EXPECT(close_range(7, 3, 0) == -1 && errno == EINVAL);
  EXPECT(open("/dev/null", O_RDONLY) == 3);
  EXPECT(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
  printf("%d open\n", countOpen());
  worksOn(data, size, 1);
  return done("fds_close_range");
}
