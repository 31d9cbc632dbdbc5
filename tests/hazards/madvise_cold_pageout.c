// SPDX-License-Identifier: Apache-2.0
// MADV_COLD and MADV_PAGEOUT ask for what happens anyway; the data stay as they were.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  for (int round = 0; round < 3; ++round) {
    EXPECT(madvise(data, size, MADV_COLD) == 0);
    EXPECT(wrongWords(data, size, 1 + (uint64_t)round) == 0);
    EXPECT(madvise(data + size / 4, size / 2, MADV_PAGEOUT) == 0);
    EXPECT(wrongWords(data, size, 1 + (uint64_t)round) == 0);
    fill(data, size, 2 + (uint64_t)round);
    crowd();
  }
  tell("data", data, size);
  return done("madvise_cold_pageout");
}
