// SPDX-License-Identifier: Apache-2.0
// A program that crashes dies of the signal it would have died of.
#include "tests/hazards/hazard.h"

int main(void) {
  char* data = farData(4 * MIB, 1);
  EXPECT(munmap(data, 4 * MIB) == 0);
  done("segv_unhandled");
  fflush(stdout);
  *(volatile char*)(data + 5) = 1;
  return 0;
}
