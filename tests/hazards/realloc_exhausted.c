// SPDX-License-Identifier: Apache-2.0
// realloc of large blocks where hardly any address space is left (run with a small one): it is
// NULL, and the block as it was, or the block is larger; never the end of the program. Says nothing
// of which, since that depends on the space.
#include "tests/hazards/hazard.h"

enum { kMost = 12 };
static const size_t kBlock = 33 * MIB;             // ends in the midst of 2 MiB
static const size_t kLarger = 34 * MIB + MIB / 2;  // fits in between, but not from 2 MiB on

static void mark(char* block, uint64_t seed) {
  for (size_t at = 0; at < kBlock; at += MIB) memcpy(block + at, &seed, sizeof seed);
}

static int isMarked(const char* block, uint64_t seed) {
  for (size_t at = 0; at < kBlock; at += MIB) {
    if (memcmp(block + at, &seed, sizeof seed) != 0) return 0;
  }
  return 1;
}

int main(void) {
  char* blocks[kMost];
  int count = 0;
  while (count < kMost && (blocks[count] = malloc(kBlock)) != NULL) {
    mark(blocks[count], (uint64_t)count + 1);
    ++count;
  }
  EXPECT(count >= 3);
  for (int gap = 0; gap + 2 < count; gap += 2) {
    free(blocks[gap]);
    blocks[gap] = NULL;
    for (int i = gap + 1; i < count; ++i) {
      char* larger = realloc(blocks[i], kLarger);
      if (larger != NULL) blocks[i] = larger;
      EXPECT(isMarked(blocks[i], (uint64_t)i + 1));
      if (larger == NULL) continue;
      char* as_before = realloc(larger, kBlock);
      EXPECT(as_before != NULL && isMarked(as_before, (uint64_t)i + 1));
      blocks[i] = as_before;
    }
  }
  for (int i = 0; i < count; ++i) {
    EXPECT(blocks[i] == NULL || isMarked(blocks[i], (uint64_t)i + 1));
    free(blocks[i]);
  }
  return done("realloc_exhausted");
}
