// SPDX-License-Identifier: Apache-2.0
// MAP_FIXED of shared anonymous memory and of a memory file, twice in different places, over far
// data.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB, part = 2 * MIB;
  char* data = farData(size, 1);
  EXPECT(mmap(data + MIB, part, kRw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == data + MIB);
  EXPECT(allBytesAre(data + MIB, 0, part));
  const int ring = memfd_create("ring", MFD_CLOEXEC);
  EXPECT(ftruncate(ring, (off_t)part) == 0);
  // A ring buffer that wraps by itself.
  char* first = data + 8 * MIB;
  char* second = first + part;
  EXPECT(mmap(first, part, kRw, MAP_SHARED | MAP_FIXED, ring, 0) == first);
  EXPECT(mmap(second, part, kRw, MAP_SHARED | MAP_FIXED, ring, 0) == second);
  fill(first + part / 2, part, 3);
  crowd();
  EXPECT(wrongFrom(first, part / 2, 3, part / 16) == 0);
  EXPECT(wrongWords(second + part / 2, part / 2, 3) == 0);
  fill(data + MIB, part, 4);
  crowd();
  tell("data", data, size);
  EXPECT(mremap(data + MIB, part, part, MREMAP_MAYMOVE) == data + MIB);
  EXPECT(munmap(data, size) == 0);
  return done("fixed_shared");
}
