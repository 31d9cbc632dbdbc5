// SPDX-License-Identifier: Apache-2.0
// Freed memory is used again before new memory is taken: a program that allocates and frees the
// same batch over and over, in fresh threads too, holds little more than one batch of each size.
#include <pthread.h>

#include "check.h"

enum { kBlocks = 400, kRounds = 60, kThreads = 4 };
static const size_t kSizes[] = {2000, 5000, 12000, 16384, 40000, 70000};
enum { kSizeCount = sizeof kSizes / sizeof kSizes[0] };

/// Anonymous memory of this process, in bytes.
static size_t anonymousBytes(void) {
  char line[256];
  unsigned long long kib = 0;
  FILE* status = fopen("/proc/self/status", "r");
  EXPECT(status != NULL);
  while (fgets(line, sizeof line, status) != NULL) {
    if (sscanf(line, "RssAnon: %llu kB", &kib) == 1) break;
  }
  fclose(status);
  return (size_t)kib * 1024;
}

/// In every round all blocks are live at once, and then none.
static void cycle(size_t size) {
  static __thread char* blocks[kBlocks];
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      blocks[i] = malloc(size);
      blocks[i][0] = blocks[i][size - 1] = (char)i;
    }
    for (int i = 0; i < kBlocks; ++i) EXPECT(blocks[i][size - 1] == (char)i);
    for (int i = 1; i < kBlocks; i += 2) free(blocks[i]);
    for (int i = kBlocks; i >= 2; i -= 2) free(blocks[i - 2]);
  }
}

static void* cycleAll(void* unused) {
  for (int i = 0; i < kSizeCount; ++i) cycle(kSizes[i]);
  return unused;
}

int main(void) {
  size_t batches = 0;
  for (int i = 0; i < kSizeCount; ++i) batches += kSizes[i] * kBlocks;
  const size_t before = anonymousBytes();
  cycleAll(NULL);
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, cycleAll, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
  }
  const size_t after = anonymousBytes();
  // Two heaps at most are in use: the first thread's, and that of the one other alive.
  if (after > before + 3 * batches) {
    printf("%zu MiB are held for batches of %zu MiB\n", (after - before) >> 20, batches >> 20);
    EXPECT(!"freed memory was not used again");
  }
  return failures();
}
