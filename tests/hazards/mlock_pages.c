// SPDX-License-Identifier: Apache-2.0
// mlock, mlock2 and munlock of far memory, with and without the rights to it: what is locked stays;
// mlock of what is not mapped is refused.
#include <stdbool.h>

#include "tests/hazards/hazard.h"

static bool allThere(char* data, size_t size) {
  static unsigned char there[4 * MIB / kPage];
  EXPECT(mincore(data, size, there) == 0);
  for (size_t i = 0; i < size / kPage; ++i) {
    if ((there[i] & 1) == 0) return false;
  }
  return true;
}

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  EXPECT(mlock(data, size) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  EXPECT(allThere(data, size));
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  EXPECT(munlock(data, size) == 0);
  crowd();
  EXPECT(mlock2(data + kPage, 100, MLOCK_ONFAULT) == 0);
  EXPECT(munlock(data, 3 * kPage) == 0);
  EXPECT(mprotect(data, kPage, PROT_READ) == 0);
  EXPECT(mlock(data, 2 * kPage) == 0);
  crowd();
  EXPECT(allThere(data, 2 * kPage));
  EXPECT(munlock(data, 2 * kPage) == 0);
  EXPECT(munmap(data, kPage) == 0);
  errno = 0;
  EXPECT(mlock(data, 2 * kPage) == -1 && errno == ENOMEM);
  EXPECT(munlock(data + kPage, size - kPage) == 0);
  tell("data", data + kPage, size - kPage);
  return done("mlock_pages");
}
