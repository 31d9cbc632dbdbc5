// SPDX-License-Identifier: Apache-2.0
// What a program that is linked with an allocator of its own does with it: the library differs, the
// program does not.
#pragma once

#include "tests/hazards/hazard.h"

static inline int useLinkedAllocator(void) {
  crowd();
  enum { kBlocks = 2000 };
  static char* blocks[kBlocks];
  uint64_t sum = 0;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kBlocks; ++i) {
      const size_t size = 8 * (1 + (i * 37 + (size_t)round) % 1000);
      blocks[i] = (char*)realloc(blocks[i], size);
      fill(blocks[i], size, i);
    }
    crowd();
    for (size_t i = 0; i < kBlocks; ++i) {
      const size_t size = 8 * (1 + (i * 37 + (size_t)round) % 1000);
      EXPECT(wrongWords(blocks[i], size, i) == 0);
      sum += digest(blocks[i], size);
    }
  }
  for (size_t i = 0; i < kBlocks; ++i) free(blocks[i]);
  char* copy = strdup("from libc");
  printf("%s %016llx\n", copy, (unsigned long long)sum);
  free(copy);
  return done("linked");
}
