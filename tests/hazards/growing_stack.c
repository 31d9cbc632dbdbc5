// SPDX-License-Identifier: Apache-2.0
// A mapping that grows downwards, where the program had mapped and unmapped something before: it
// grows, as far as what is mapped below it.
#include <pthread.h>

#include "tests/hazards/hazard.h"

enum { kStack = 64 * 1024 };

int main(void) {
  const size_t area = 8 * MIB;
  char* kept = farData(4 * MIB, 1);
  char* space = (char*)mmap(NULL, area, PROT_NONE, kPlain, -1, 0);
  EXPECT(space != MAP_FAILED && munmap(space, area) == 0);
  char* at = space + area - kStack;
  EXPECT(mmap(at, kStack, kRw, kPlain | MAP_FIXED | MAP_GROWSDOWN | MAP_STACK, -1, 0) == at);
  for (char* word = at + kStack - 64; word >= at - 4 * MIB; word -= kPage)
    *(volatile uint64_t*)word = (uint64_t)(word - at);
  for (char* word = at + kStack - 64; word >= at - 4 * MIB; word -= kPage)
    EXPECT(*(volatile uint64_t*)word == (uint64_t)(word - at));
  crowd();
  const pid_t child = fork();
  if (child == 0) {
    *(volatile char*)(at - 5 * MIB) = 1;
    _exit(wrongWords(kept, 4 * MIB, 1) == 0 ? 3 : 4);
  }
  ended("child", child);
  EXPECT(munmap(at - 4 * MIB, 4 * MIB + kStack) == 0);

  // Space that was given back takes a file, and a mapping that must not replace anything.
  const int file = fileOf(MIB, 7);
  char* free_ = (char*)mmap(NULL, area, kRw, kPlain, -1, 0);
  EXPECT(munmap(free_, area) == 0);
  EXPECT(mmap(free_, MIB, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) == free_);
  EXPECT(wrongWords(free_, MIB, 7) == 0);
  EXPECT(mmap(free_, MIB, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) == MAP_FAILED);
  EXPECT(munmap(free_, MIB) == 0);
  EXPECT(mmap(free_, 2 * MIB, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0) == free_);
  EXPECT(allBytesAre(free_, 0, 2 * MIB));
  fill(free_, 2 * MIB, 9);
  EXPECT(munmap(free_, 2 * MIB) == 0);
  EXPECT(wrongWords(kept, 4 * MIB, 1) == 0);
  return done("growing_stack");
}
