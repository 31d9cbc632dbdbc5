// SPDX-License-Identifier: Apache-2.0
// mlock, mlock2 and munlock of far memory, with and without the rights to it; mlock of what is not
// mapped is refused.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  EXPECT(mlock(data, size) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  EXPECT(munlock(data, size) == 0);
  crowd();
  EXPECT(mlock2(data + kPage, 100, MLOCK_ONFAULT) == 0);
  EXPECT(munlock(data, 3 * kPage) == 0);
  EXPECT(mprotect(data, kPage, PROT_READ) == 0);
  EXPECT(mlock(data, 2 * kPage) == 0 && munlock(data, 2 * kPage) == 0);
  EXPECT(munmap(data, kPage) == 0);
  errno = 0;
  EXPECT(mlock(data, 2 * kPage) == -1 && errno == ENOMEM);
  EXPECT(munlock(data + kPage, size - kPage) == 0);
  tell("data", data + kPage, size - kPage);
  return done("mlock_pages");
}
