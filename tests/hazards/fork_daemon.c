// SPDX-License-Identifier: Apache-2.0
// daemon(3) with far data, and everything closed afterwards: the daemon works on with all of it.
#include "tests/hazards/descriptors.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  fflush(stdout);
  if (daemon(1, 1) != 0) return 1;
  closefrom(3);
  worksOn(data, size, 1);
  return done("fork_daemon");
}
