// SPDX-License-Identifier: Apache-2.0
// clone(CLONE_VM): another process in the same memory, its stack in managed memory, reads and
// writes what is far; with and without a table of descriptors of its own.
#include <sched.h>

#include "tests/hazards/hazard.h"

static const size_t kSize = 8 * MIB;

static int other(void* argument) {
  char* data = (char*)argument;
  if (wrongWords(data, kSize, 1) != 0) return 3;
  fill(data, kSize, 2);
  closefrom(3);
  return wrongWords(data, kSize, 2) == 0 ? 4 : 5;
}

int main(void) {
  char* stack = farData(MIB, 7);
  const int flags[] = {CLONE_VM | SIGCHLD, CLONE_VM | CLONE_FS | SIGCHLD,
                       CLONE_VM | CLONE_VFORK | SIGCHLD};
  for (int i = 0; i < 3; ++i) {
    char* data = farData(kSize, 1);
    const pid_t made = clone(other, stack + MIB, flags[i], data);
    EXPECT(made > 0);
    ended("clone", made);
    crowd();
    EXPECT(wrongWords(data, kSize, 2) == 0);
    munmap(data, kSize);
  }
  EXPECT(wrongWords(stack, MIB / 2, 7) == 0);
  return done("clone_vm");
}
