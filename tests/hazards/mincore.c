// SPDX-License-Identifier: Apache-2.0
// mincore works on far memory, as on any: it says which pages are there, and ENOMEM for holes. What
// is touched just before is in memory.
#include "tests/hazards/hazard.h"

int main(void) {
  enum { kPages = 1024 };
  static unsigned char seen[kPages];
  char* data = farData((size_t)kPages * kPage, 1);
  EXPECT(mincore(data, (size_t)kPages * kPage, seen) == 0);
  for (int i = 0; i < kPages; ++i) EXPECT((seen[i] & ~1) == 0);
  int there = 0;
  for (int i = 0; i < kPages; ++i) {
    EXPECT(wrongFrom(data + (size_t)i * kPage, kPage, 1, (size_t)i * kPage / 8) == 0);
    EXPECT(mincore(data + (size_t)i * kPage, kPage, seen) == 0);
    there += seen[0] & 1;
  }
  // A page may leave between the two calls, but not all of them.
  EXPECT(there > kPages / 2);
  EXPECT(munmap(data + 8 * kPage, kPage) == 0);
  errno = 0;
  EXPECT(mincore(data + 8 * kPage, kPage, seen) == -1 && errno == ENOMEM);
  errno = 0;
  EXPECT(mincore(data + 1, kPage, seen) == -1 && errno == EINVAL);
  return done("mincore");
}
