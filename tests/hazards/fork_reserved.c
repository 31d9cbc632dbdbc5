// SPDX-License-Identifier: Apache-2.0
// Fork with a reserved heap that is partly open, partly closed with its bytes: both sides see it as
// it was, open more of it and give some back, and neither sees what the other does.
#include "tests/hazards/hazard.h"

static char* heap;

static void goOn(uint64_t seed) {
  EXPECT(mprotect(heap + 8 * MIB, 4 * MIB, kRw) == 0);
  EXPECT(wrongWords(heap, 12 * MIB, 1) == 0);
  EXPECT(mmap(heap, 3 * MIB, PROT_NONE, kPlain | MAP_FIXED | MAP_NORESERVE, -1, 0) == heap);
  EXPECT(mprotect(heap + 20 * MIB, 8 * MIB, kRw) == 0);
  EXPECT(allBytesAre(heap + 20 * MIB, 0, 8 * MIB));
  fill(heap + 20 * MIB, 8 * MIB, seed);
  fill(heap + 4 * MIB, MIB, seed);
  crowd();
  EXPECT(wrongWords(heap + 20 * MIB, 8 * MIB, seed) == 0);
  EXPECT(wrongWords(heap + 4 * MIB, MIB, seed) == 0);
  EXPECT(wrongFrom(heap + 5 * MIB, 7 * MIB, 1, 5 * MIB / 8) == 0);
}

int main(void) {
  crowd();
  heap = (char*)mmap(NULL, (size_t)64 << 30, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(heap != MAP_FAILED);
  EXPECT(mprotect(heap, 12 * MIB, kRw) == 0);
  fill(heap, 12 * MIB, 1);
  EXPECT(mprotect(heap + 8 * MIB, 4 * MIB, PROT_NONE) == 0);
  crowd();
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    goOn(2);
    return done("child");
  }
  ended("child", child);
  goOn(3);
  tell("parent", heap + 4 * MIB, 8 * MIB);
  return done("fork_reserved");
}
