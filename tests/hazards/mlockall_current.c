// SPDX-License-Identifier: Apache-2.0
// mlockall(MCL_CURRENT | MCL_FUTURE), as programs for real time begin: all memory is brought in, and the
// program works on with more than local memory holds.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  EXPECT(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  char* more = farBlock(size, 2);
  crowd();
  EXPECT(wrongWords(more, size, 2) == 0 && wrongWords(data, size, 1) == 0);
  EXPECT(munlockall() == 0);
  crowd();
  free(more);
  tell("data", data, size);
  return done("mlockall_current");
}
