// SPDX-License-Identifier: Apache-2.0
// mremap that has to move, for neighbours are in the way: what is left behind is unmapped.
#include "tests/hazards/hazard.h"

int main(void) {
  enum { kRanges = 32 };
  char* ranges[kRanges];
  const size_t size = MIB / 2;
  crowd();
  for (int i = 0; i < kRanges; ++i) {
    ranges[i] = mapPlain(size);
    fill(ranges[i], size, (uint64_t)i);
  }
  crowd();
  for (int i = 0; i < kRanges; i += 2) {
    ranges[i] = (char*)mremap(ranges[i], size, 2 * size, MREMAP_MAYMOVE);
    EXPECT(ranges[i] != MAP_FAILED);
  }
  crowd();
  for (int i = 0; i < kRanges; ++i) {
    EXPECT(wrongWords(ranges[i], size, (uint64_t)i) == 0);
    if (i % 2 == 0) EXPECT(allBytesAre(ranges[i] + size, 0, size));
    tell("range", ranges[i], i % 2 == 0 ? 2 * size : size);
  }
  errno = 0;
  char* odd = (char*)mremap(ranges[1] + 1, size, 2 * size, MREMAP_MAYMOVE);
  EXPECT(odd == MAP_FAILED && errno == EINVAL);
  return done("mremap_move");
}
