// SPDX-License-Identifier: Apache-2.0
// mlockall of everything, now and to come, at once and as it is used, with more data than the
// budget (programs for real time begin like this): the program goes on, and after munlockall pages
// leave again. Flags that make no sense are refused.
#include "tests/hazards/hazard.h"

int main(void) {
  const int ways[] = {MCL_CURRENT | MCL_ONFAULT, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT,
                      MCL_CURRENT, MCL_CURRENT | MCL_FUTURE, MCL_FUTURE};
  const int senseless[] = {0, MCL_ONFAULT, 1 << 20, MCL_CURRENT | 1 << 20};
  const size_t size = 4 * MIB;
  for (size_t i = 0; i < sizeof senseless / sizeof senseless[0]; ++i) {
    errno = 0;
    EXPECT(mlockall(senseless[i]) == -1 && errno == EINVAL);
  }
  for (uint64_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
    char* data = farData(size, i);
    EXPECT(mlockall(ways[i]) == 0);
    EXPECT(wrongWords(data, size, i) == 0);
    char* block = farBlock(size, i + 1);
    char* mapped = farData(size, i + 2);
    EXPECT(wrongWords(data, size, i) == 0 && wrongWords(block, size, i + 1) == 0);
    EXPECT(munlockall() == 0);
    crowd();
    EXPECT(wrongWords(mapped, size, i + 2) == 0);
    tell("data", data, size);
    free(block);
    EXPECT(munmap(data, size) == 0 && munmap(mapped, size) == 0);
  }
  return done("mlockall");
}
