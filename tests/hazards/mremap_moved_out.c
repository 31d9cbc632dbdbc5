// SPDX-License-Identifier: Apache-2.0
// What mremap has moved with MREMAP_DONTUNMAP is one mapping, which can be moved again, cut and
// grown.
#include "tests/hazards/hazard.h"

enum { kSize = 12 << 20 };

static char* move(char* from, size_t old_size, size_t new_size, int flags, char* to) {
  char* moved = (char*)mremap(from, old_size, new_size, MREMAP_MAYMOVE | flags, to);
  EXPECT(moved != MAP_FAILED);
  if (moved == MAP_FAILED) exit(done("mremap_moved_out"));
  return moved;
}

/// Where nothing is, and something may be put.
static char* room(size_t size) {
  char* there = mapPlain(size);
  EXPECT(munmap(there, size) == 0);
  return there;
}

static void resize(int written) {
  crowd();
  char* data = mapPlain(kSize);
  for (size_t at = 0; written && at < kSize; at += 2 * MIB) fill(data + at, MIB, at);
  crowd();
  char* moved = move(data, kSize, kSize, MREMAP_DONTUNMAP, NULL);
  EXPECT(allBytesAre(data, 0, kSize));
  moved = move(moved, kSize, kSize / 2, MREMAP_FIXED, room(kSize));
  moved = move(moved, kSize / 2, kSize, 0, NULL);
  moved = move(moved, kSize, 2 * kSize, MREMAP_FIXED, room(2 * kSize));
  moved = move(moved, 2 * kSize, kSize, 0, NULL);
  for (size_t at = 0; at < kSize; at += 2 * MIB) {
    const int kept = written && at < kSize / 2;
    EXPECT(kept ? wrongWords(moved + at, MIB, at) == 0 : allBytesAre(moved + at, 0, MIB));
    EXPECT(allBytesAre(moved + at + MIB, 0, MIB));
  }
  tell("moved", moved, kSize);

  // Over a hole it cannot be.
  EXPECT(munmap(moved + kSize / 4, kPage) == 0);
  errno = 0;
  EXPECT(mremap(moved, kSize, 2 * kSize, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
  tell("left", moved, kSize / 4);
  munmap(moved, kSize);
  munmap(data, kSize);
}

int main(void) {
  resize(0);
  resize(1);
  return done("mremap_moved_out");
}
