// SPDX-License-Identifier: Apache-2.0
// MADV_DONTFORK: such memory is not in the child at all, and is again after MADV_DOFORK, or when
// something else is mapped in its place. The parent has it all the while, wherever it goes.
#include "tests/hazards/hazard.h"

static void tryInChild(const char* what, const char* at, char byte) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) _exit(*(const volatile char*)at == byte ? 3 : 4);
  ended(what, child);
}

static void whatTakesItsPlaceIsShared(void) {
  char* data = farData(4 * MIB, 2);
  EXPECT(madvise(data, 4 * MIB, MADV_DONTFORK) == 0);
  EXPECT(mmap(data, MIB, kRw, kPlain | MAP_FIXED, -1, 0) == data);
  EXPECT(munmap(data + MIB, MIB) == 0);
  EXPECT(mmap(data + MIB, MIB, kRw, kPlain | MAP_FIXED, -1, 0) == data + MIB);
  fill(data, 2 * MIB, 3);
  tryInChild("mapped over", data + 5, data[5]);
  tryInChild("mapped again", data + MIB + 5, data[MIB + 5]);
  tryInChild("left", data + 2 * MIB + 5, data[2 * MIB + 5]);
  char* moved = (char*)mremap(data + 2 * MIB, 2 * MIB, 32 * MIB, MREMAP_MAYMOVE);
  EXPECT(moved != MAP_FAILED && wrongFrom(moved, 2 * MIB, 2, 2 * MIB / 8) == 0);
  tryInChild("moved", moved + 5, moved[5]);
  tryInChild("grown", moved + 31 * MIB, moved[31 * MIB]);
  tell("moved", moved, 2 * MIB);
}

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size / 2, MADV_DONTFORK) == 0);
  for (int round = 0; round < 2; ++round) {
    tryInChild("kept", data + 5, data[5]);
    tryInChild("not kept", data + size / 2, data[size / 2]);
    crowd();
    fill(data, size, 1);
    EXPECT(madvise(data, size, MADV_DOFORK) == 0);
  }
  // A child that goes on for itself, and has children.
  EXPECT(madvise(data, size / 2, MADV_DONTFORK) == 0);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    fill(data + size / 2, size / 2, 4);
    crowd();
    EXPECT(wrongWords(data + size / 2, size / 2, 4) == 0);
    tryInChild("of the child", data + size / 2, data[size / 2]);
    return done("child");
  }
  ended("child", child);
  crowd();
  tell("data", data, size);
  whatTakesItsPlaceIsShared();
  return done("fork_advice");
}
