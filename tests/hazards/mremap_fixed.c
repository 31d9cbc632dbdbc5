// SPDX-License-Identifier: Apache-2.0
// mremap to a fixed address: onto a reservation, onto other data, and a reservation's own memory
// onto managed data. What was there is gone, what came is whole, also when it is read-only.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  char* reserved = (char*)mmap(NULL, size, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, reserved) == reserved);
  crowd();
  EXPECT(wrongWords(reserved, size, 1) == 0);
  char* other = farData(size, 2);
  EXPECT(mremap(reserved, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
  crowd();
  EXPECT(wrongWords(other, size, 1) == 0);
  tell("onto data", other, size);
  // Into the middle of other data, wider than it was.
  char* wide = farData(2 * size, 3);
  char* middle = wide + size / 2;
  EXPECT(mremap(other, size / 2, size, MREMAP_MAYMOVE | MREMAP_FIXED, middle) == middle);
  crowd();
  EXPECT(wrongWords(wide, size / 2, 3) == 0);
  EXPECT(wrongWords(middle, size / 2, 1) == 0);
  EXPECT(allBytesAre(middle + size / 2, 0, size / 2));
  EXPECT(wrongFrom(middle + size, size / 2, 3, (size + size / 2) / 8) == 0);
  tell("into data", wide, 2 * size);
  // Read-only stays read-only.
  char* constant = farData(size, 4);
  EXPECT(mprotect(constant, size, PROT_READ) == 0);
  EXPECT(mremap(constant, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, wide) == wide);
  errno = 0;
  EXPECT(pread(fileOf(kPage, 1), wide, kPage, 0) == -1 && errno == EFAULT);
  EXPECT(wrongWords(wide, size, 4) == 0);
  // What overlaps itself is refused.
  errno = 0;
  EXPECT(mremap(wide, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, wide + kPage) == MAP_FAILED &&
         errno == EINVAL);
  EXPECT(wrongWords(wide, size, 4) == 0);
  return done("mremap_fixed");
}
