// SPDX-License-Identifier: Apache-2.0
// MADV_WILLNEED on far memory, larger than the budget and in pieces, with use right behind it.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 24 * MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size, MADV_WILLNEED) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  for (size_t at = 0; at < size; at += MIB) {
    EXPECT(madvise(data + at, MIB, MADV_WILLNEED) == 0);
    EXPECT(wrongFrom(data + at, MIB, 1, at / 8) == 0);
    EXPECT(madvise(data + at, MIB, MADV_COLD) == 0);
  }
  tell("data", data, size);
  return done("madvise_willneed");
}
