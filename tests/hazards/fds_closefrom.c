// SPDX-License-Identifier: Apache-2.0
// closefrom(3) in a program that works on, as daemons do: all of its descriptors are gone, its
// memory is not.
#include "tests/hazards/descriptors.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  for (int i = 0; i < 10; ++i) EXPECT(open("/dev/null", O_RDONLY) >= 0);
  closefrom(3);
  printf("%d open\n", countOpen());
  worksOn(data, size, 1);
  EXPECT(open("/dev/null", O_RDONLY) == 3);
  closefrom(3);
  worksOn(data, size, 1);
  return done("fds_closefrom");
}
