// SPDX-License-Identifier: Apache-2.0
// MADV_POPULATE_READ and _WRITE: on new memory, on far memory, on memory without the right to it.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size, MADV_POPULATE_READ) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  EXPECT(madvise(data, size, MADV_POPULATE_WRITE) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  char* fresh = mapPlain(size);
  EXPECT(madvise(fresh, size, MADV_POPULATE_WRITE) == 0 && allBytesAre(fresh, 0, size));
  EXPECT(mprotect(data, kPage, PROT_READ) == 0);
  errno = 0;
  EXPECT(madvise(data, kPage, MADV_POPULATE_WRITE) == -1);
  printf("write to read-only: errno %d\n", errno);
  EXPECT(mprotect(data, kPage, PROT_NONE) == 0);
  errno = 0;
  EXPECT(madvise(data, kPage, MADV_POPULATE_READ) == -1);
  printf("read without rights: errno %d\n", errno);
  tell("data", data + kPage, size - kPage);
  return done("madvise_populate");
}
