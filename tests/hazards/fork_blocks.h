// SPDX-License-Identifier: Apache-2.0
// For hazards of what libc keeps in the heap and uses in a fork: blocks of the program's own on
// both sides of it, memory enough to make all of that far, and children that look.
#pragma once

#include "hazard.h"

enum { kBlocks = 4000, kForks = 12 };
static char* blocks[kBlocks];

static uint64_t seedOf(int block) { return 100 + (uint64_t)block; }

static void fillBlocks(int first, int end, size_t bytes) {
  for (int i = first; i < end; ++i) {
    blocks[i] = (char*)malloc(bytes);
    fill(blocks[i], bytes, seedOf(i));
  }
}

/// Half of the blocks, what libc allocates in `between`, the other half.
static void surround(void (*between)(void), size_t bytes) {
  fillBlocks(0, kBlocks / 2, bytes);
  between();
  fillBlocks(kBlocks / 2, kBlocks, bytes);
}

static int wrongBlocks(size_t bytes) {
  int wrong = 0;
  for (int i = 0; i < kBlocks; ++i) wrong += wrongWords(blocks[i], bytes, seedOf(i)) != 0;
  return wrong;
}

/// Forks with everything far, again and again. `look` returns 0 when all is as it must be.
static void forkAndLook(int (*look)(void)) {
  char* ballast = mapPlain(BALLAST);
  int good = 0;
  for (int i = 0; i < kForks; ++i) {
    fill(ballast, BALLAST, (uint64_t)i);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(look());
    int status = -1;
    waitpid(child, &status, 0);
    good += status == 0;
  }
  printf("%d of %d children saw what they must, the parent %d\n", good, kForks, look() == 0);
}
