// SPDX-License-Identifier: Apache-2.0
// mremap that grows: in steps, in place where it can, with what was there kept and zeros after it.
#include "tests/hazards/hazard.h"

int main(void) {
  size_t size = MIB;
  char* data = farData(size, 1);
  for (int step = 0; step < 4; ++step) {
    const size_t wider = size * 2;
    data = (char*)mremap(data, size, wider, MREMAP_MAYMOVE);
    EXPECT(data != MAP_FAILED);
    EXPECT(wrongWords(data, size, 1) == 0);
    EXPECT(allBytesAre(data + size, 0, wider - size));
    fill(data, wider, 1);
    crowd();
    size = wider;
  }
  EXPECT(wrongWords(data, size, 1) == 0);
  tell("grown", data, size);
  // A page out of the middle, to a place of its own.
  char* part = (char*)mremap(data + 100 * kPage, kPage, 300 * kPage, MREMAP_MAYMOVE);
  EXPECT(part != MAP_FAILED && wrongFrom(part, kPage, 1, 100 * kPage / 8) == 0);
  EXPECT(allBytesAre(part + kPage, 0, 299 * kPage));
  EXPECT(munmap(part, 300 * kPage) == 0);
  EXPECT(wrongWords(data, 100 * kPage, 1) == 0);
  EXPECT(wrongFrom(data + 101 * kPage, kPage, 1, 101 * kPage / 8) == 0);
  return done("mremap_grow");
}
