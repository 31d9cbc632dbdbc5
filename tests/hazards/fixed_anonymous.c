// SPDX-License-Identifier: Apache-2.0
// MAP_FIXED of new anonymous memory over far data: zeros there, the neighbours untouched; also with
// other rights, across the end of a mapping, and MAP_FIXED_NOREPLACE, which must refuse.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  for (size_t at = 0; at + 16 * kPage <= size; at += 64 * kPage) {
    EXPECT(mmap(data + at, 16 * kPage, kRw, kPlain | MAP_FIXED, -1, 0) == data + at);
  }
  crowd();
  for (size_t at = 0; at < size; at += 64 * kPage) {
    EXPECT(allBytesAre(data + at, 0, 16 * kPage));
    EXPECT(wrongFrom(data + at + 16 * kPage, 48 * kPage, 1, (at + 16 * kPage) / 8) == 0);
    fill(data + at, 16 * kPage, at);
  }
  crowd();
  tell("data", data, size);
  errno = 0;
  EXPECT(mmap(data, size, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
         errno == EEXIST);
  EXPECT(mmap(data, 2 * MIB, PROT_READ, kPlain | MAP_FIXED, -1, 0) == data);
  EXPECT(allBytesAre(data, 0, 2 * MIB));
  EXPECT(mprotect(data, 2 * MIB, kRw) == 0);
  fill(data, 2 * MIB, 9);
  // A hole, and a new mapping over the hole and both its sides.
  EXPECT(munmap(data + 4 * MIB, 2 * MIB) == 0);
  EXPECT(mmap(data + 3 * MIB, 4 * MIB, kRw, kPlain | MAP_FIXED, -1, 0) == data + 3 * MIB);
  EXPECT(allBytesAre(data + 3 * MIB, 0, 4 * MIB));
  fill(data + 3 * MIB, 4 * MIB, 10);
  crowd();
  EXPECT(wrongWords(data + 3 * MIB, 4 * MIB, 10) == 0 && wrongWords(data, 2 * MIB, 9) == 0);
  tell("data", data, size);
  EXPECT(munmap(data, size) == 0);
  return done("fixed_anonymous");
}
