// SPDX-License-Identifier: Apache-2.0
// mlockall of everything, now and to come, with more data than the budget: the program goes on, and
// after munlockall pages leave again.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  EXPECT(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  char* more = farData(size, 2);
  EXPECT(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
  char* later = farData(size, 3);
  EXPECT(wrongWords(data, size, 1) == 0 && wrongWords(more, size, 2) == 0);
  EXPECT(munlockall() == 0);
  crowd();
  EXPECT(wrongWords(later, size, 3) == 0);
  tell("data", data, size);
  return done("mlockall");
}
