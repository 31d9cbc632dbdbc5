// SPDX-License-Identifier: Apache-2.0
// The malloc family: contents, alignments, edge cases and errno, as glibc has them. Runs with and
// without the preload; both must print the same and succeed.
#define _GNU_SOURCE
#include <malloc.h>
#include <stdalign.h>
#include <unistd.h>

#include "check.h"

static volatile size_t kHuge = 800u << 20;

static void degenerateSizes(void) {
  void* nothing = opaque(malloc(0));
  EXPECT(nothing != NULL);
  free(nothing);
  errno = 0;
  EXPECT(opaque(malloc((size_t)PTRDIFF_MAX + 1)) == NULL && errno == ENOMEM);
  errno = 0;
  EXPECT(opaque(malloc(SIZE_MAX)) == NULL && errno == ENOMEM);
  errno = 0;
  volatile size_t half = SIZE_MAX / 2;
  EXPECT(opaque(calloc(half, 3)) == NULL && errno == ENOMEM);
  errno = 0;
  EXPECT(opaque(reallocarray(NULL, half, 3)) == NULL && errno == ENOMEM);
  errno = 0;
  EXPECT(opaque(pvalloc(SIZE_MAX)) == NULL && errno == ENOMEM);
  free(NULL);
  EXPECT(malloc_usable_size(NULL) == 0);
  void* block = malloc(100);
  EXPECT(opaque(realloc(block, 0)) == NULL);
  void* kept = malloc(50);
  memset(kept, 7, 50);
  EXPECT(realloc(kept, (size_t)PTRDIFF_MAX) == NULL);
  EXPECT(allBytesAre(kept, 7, 50));
  free(kept);
  errno = 123;
  free(malloc(10));
  free(malloc(kHuge));
  EXPECT(errno == 123);
}

static void alignments(void) {
  void* block = (void*)1;
  EXPECT(posix_memalign(&block, 3, 10) == EINVAL);
  EXPECT(posix_memalign(&block, 4, 10) == EINVAL);
  EXPECT(posix_memalign(&block, 0, 10) == EINVAL);
  EXPECT(block == (void*)1);
  EXPECT(posix_memalign(&block, 64, SIZE_MAX / 2) == ENOMEM);
  for (size_t alignment = 8; alignment <= (size_t)16 << 20; alignment *= 2) {
    for (size_t size = 1; size < 300000; size = size * 7 + 3) {
      EXPECT(posix_memalign(&block, alignment, size) == 0);
      EXPECT((uintptr_t)block % alignment == 0);
      memset(block, 1, size);
      EXPECT(malloc_usable_size(block) >= size);
      free(block);
      block = aligned_alloc(alignment, size);
      EXPECT(block != NULL && (uintptr_t)block % alignment == 0);
      free(block);
    }
  }
  block = memalign(48, 100);  // rounded up to 64
  EXPECT(block != NULL && (uintptr_t)block % 64 == 0);
  free(block);
  errno = 0;
  EXPECT(opaque(memalign(SIZE_MAX, 10)) == NULL && errno == EINVAL);
  block = valloc(10);
  EXPECT((uintptr_t)block % 4096 == 0);
  free(block);
  block = pvalloc(10);
  EXPECT((uintptr_t)block % 4096 == 0 && malloc_usable_size(block) >= 4096);
  free(block);
  static void* kept[5000];
  for (size_t size = 0; size < 5000; ++size) {
    kept[size] = size % 3 == 0 ? aligned_alloc(16, size % 50) : opaque(malloc(size % 50 * size));
    EXPECT((uintptr_t)kept[size] % 16 == 0);
  }
  for (size_t size = 0; size < 5000; ++size) {
    kept[size] = realloc(kept[size], 1 + size % 9);
    EXPECT((uintptr_t)kept[size] % 16 == 0);
  }
  for (size_t size = 0; size < 5000; ++size) free(kept[size]);
}

static void zeroFill(void) {
  // Dirty, free, and ask again for zeros: recycled memory must be cleared.
  static const size_t kSizes[] = {1, 100, 5000, 70000, 3u << 20, 40u << 20};
  for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; ++i) {
    for (int round = 0; round < 4; ++round) {
      unsigned char* block = opaque(malloc(kSizes[i]));
      memset(block, 0xa5, kSizes[i]);
      free(block);
      block = opaque(calloc(1, kSizes[i]));
      EXPECT(allBytesAre(block, 0, kSizes[i]));
      memset(block, 0x5a, kSizes[i]);
      free(block);
    }
  }
}

static void reallocKeepsContents(void) {
  // Up and down through every kind of block: small, large, huge.
  static const size_t kSteps[] = {1,         40,        3000,      20000,     600000,
                                  5u << 20,  31u << 20, 33u << 20, 90u << 20, 700u << 20,
                                  50u << 20, 30u << 20, 100000,    400,       8};
  unsigned char* block = NULL;
  size_t old_size = 0;
  for (size_t i = 0; i < sizeof kSteps / sizeof *kSteps; ++i) {
    block = realloc(block, kSteps[i]);
    EXPECT(block != NULL);
    const size_t kept = old_size < kSteps[i] ? old_size : kSteps[i];
    for (size_t at = 0; at < kept; at += at < 64 ? 1 : 4093) {
      if (block[at] != (unsigned char)(at * 31)) {
        EXPECT(block[at] == (unsigned char)(at * 31));
        break;
      }
    }
    if (kSteps[i] <= 100u << 20) {  // 700 MiB only passes through: fill what the next step keeps
      for (size_t at = 0; at < kSteps[i]; ++at) block[at] = (unsigned char)(at * 31);
    }
    old_size = kSteps[i] <= 100u << 20 ? kSteps[i] : old_size;
  }
  free(block);
}

static void hugeBlock(void) {
  char* block = malloc(kHuge);
  EXPECT(block != NULL);
  EXPECT(malloc_usable_size(block) >= kHuge);
  block[0] = 1;
  block[kHuge - 1] = 2;
  EXPECT(block[kHuge / 2] == 0);
  free(block);
}

// A random walk over live blocks, each filled with its own pattern.
static void randomWalk(void) {
  enum { kSlots = 2000, kSteps = 200000 };
  static unsigned char* blocks[kSlots];
  static size_t sizes[kSlots];
  uint64_t seed = 88172645463325252u;
  for (int step = 0; step < kSteps; ++step) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    const int slot = (int)(seed % kSlots);
    if (blocks[slot] != NULL) {
      EXPECT(blocks[slot][0] == (unsigned char)slot);
      EXPECT(blocks[slot][sizes[slot] - 1] == (unsigned char)slot);
    }
    if ((seed >> 40) % 3 == 0) {
      free(blocks[slot]);
      blocks[slot] = NULL;
      continue;
    }
    const size_t size = (seed >> 32) % 64 == 0 ? 1 + (seed >> 20) % 200000 : 1 + (seed >> 20) % 600;
    blocks[slot] = realloc(blocks[slot], size);
    EXPECT(blocks[slot] != NULL);
    sizes[slot] = size;
    blocks[slot][0] = blocks[slot][size - 1] = (unsigned char)slot;
  }
  for (int slot = 0; slot < kSlots; ++slot) free(blocks[slot]);
}

int main(void) {
  degenerateSizes();
  alignments();
  zeroFill();
  reallocKeepsContents();
  hugeBlock();
  randomWalk();
  malloc_trim(0);
  printf("malloc family checked\n");
  return failures();
}
