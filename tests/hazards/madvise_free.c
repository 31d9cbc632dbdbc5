// SPDX-License-Identifier: Apache-2.0
// MADV_FREE: each page reads as what it was or as zeros, never anything else; once written, it
// stays.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size, MADV_FREE) == 0);
  crowd();
  for (size_t at = 0; at < size; at += kPage) {
    EXPECT(allBytesAre(data + at, 0, kPage) || wrongFrom(data + at, kPage, 1, at / 8) == 0);
  }
  EXPECT(madvise(data, size, MADV_FREE) == 0);
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  tell("data", data, size);
  return done("madvise_free");
}
