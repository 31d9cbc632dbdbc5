// SPDX-License-Identifier: Apache-2.0
// The whole malloc family on far blocks: usable sizes may be written to, alignments hold, arrays do
// not overflow, and statistics calls work.
#include <malloc.h>

#include "tests/hazards/hazard.h"

int main(void) {
  crowd();
  enum { kBlocks = 600 };
  char* blocks[kBlocks];
  size_t sizes[kBlocks];
  for (size_t i = 0; i < kBlocks; ++i) {
    const size_t size = 8 + i * i % 60000;
    const size_t alignment = (size_t)16 << i % 10;
    switch (i % 8) {
      case 0:
        blocks[i] = (char*)malloc(size);
        break;
      case 1:
        blocks[i] = (char*)calloc(size, 1);
        break;
      case 2:
        blocks[i] = (char*)aligned_alloc(alignment, size);
        break;
      case 3:
        blocks[i] = (char*)memalign(alignment, size);
        break;
      case 4:
        blocks[i] = (char*)valloc(size);
        break;
      case 5:
        blocks[i] = (char*)pvalloc(size);
        break;
      case 6:
        blocks[i] = (char*)reallocarray(NULL, size, 3);
        break;
      default:
        EXPECT(posix_memalign((void**)&blocks[i], alignment, size) == 0);
    }
    EXPECT(blocks[i] != NULL && (uintptr_t)blocks[i] % 16 == 0);
    if (i % 8 == 2 || i % 8 == 3 || i % 8 == 7) EXPECT((uintptr_t)blocks[i] % alignment == 0);
    if (i % 8 == 4 || i % 8 == 5) EXPECT((uintptr_t)blocks[i] % kPage == 0);
    sizes[i] = malloc_usable_size(blocks[i]) / 8 * 8;
    EXPECT(sizes[i] + 8 > size);
    fill(blocks[i], sizes[i], i);
  }
  for (size_t i = 0; i < kBlocks; ++i) EXPECT(wrongWords(blocks[i], sizes[i], i) == 0);
  crowd();
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    const size_t kept = 8;
    blocks[i] = (char*)reallocarray(blocks[i], 1 + i % 7, 20000);
    EXPECT(wrongWords(blocks[i], kept, i) == 0);
    sum += digest(blocks[i], kept);
  }
  const size_t huge = SIZE_MAX / 2;
  errno = 0;
  EXPECT(reallocarray(blocks[0], *(volatile size_t*)&huge, 3) == NULL && errno == ENOMEM);
  EXPECT(wrongWords(blocks[0], 8, 0) == 0);
  malloc_trim(0);
  const struct mallinfo2 info = mallinfo2();
  (void)info;
  EXPECT(mallopt(M_ARENA_MAX, 2) == 1);
  for (size_t i = 0; i < kBlocks; ++i) free(blocks[i]);
  malloc_trim(0);
  printf("sum %016llx\n", (unsigned long long)sum);
  return done("malloc_family_far");
}
