// SPDX-License-Identifier: Apache-2.0
// MREMAP_DONTUNMAP, as a collector uses it: the pages move, and what stays behind reads as zeros.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  char* moved = (char*)mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
  EXPECT(moved != MAP_FAILED && moved != data);
  if (moved == MAP_FAILED) return done("mremap_dontunmap");
  crowd();
  EXPECT(wrongWords(moved, size, 1) == 0);
  EXPECT(allBytesAre(data, 0, size));
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(moved, size, 1) == 0 && wrongWords(data, size, 2) == 0);
  // To a fixed place.
  char* place = mapPlain(size);
  EXPECT(mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, place) ==
         place);
  EXPECT(wrongWords(place, size, 2) == 0 && allBytesAre(data, 0, size));
  errno = 0;
  EXPECT(mremap(place, size, 2 * size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED &&
         errno == EINVAL);
  EXPECT(munmap(data, size) == 0);
  tell("moved", moved, size);
  return done("mremap_dontunmap");
}
