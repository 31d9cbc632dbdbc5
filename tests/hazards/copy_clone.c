// SPDX-License-Identifier: Apache-2.0
// clone() without CLONE_VM: a function on a stack that is far, in memory of its own.
#include "copy_ways.h"

enum { kStack = 1 << 20 };
static char* stack;

static int child(void* argument) {
  char here;
  EXPECT(&here > stack && &here < stack + kStack);
  if (wrongWords(stack, kStack / 2, 7) != 0) return 20;
  return inCopy((uint64_t)(uintptr_t)argument);
}

int main(void) {
  copied = farData(kCopySize, 1);
  stack = farData(kStack, 7);
  const int flags[] = {SIGCHLD, SIGCHLD | CLONE_FS, SIGCHLD | CLONE_PARENT_SETTID | CLONE_NEWUTS};
  pid_t* const told = (pid_t*)farData(MIB, 2);
  for (uint64_t seed = 1; seed <= sizeof flags / sizeof *flags; ++seed) {
    fflush(stdout);
    const pid_t made =
        clone(child, stack + kStack, flags[seed - 1], (void*)(uintptr_t)seed, told, NULL, NULL);
    EXPECT(made > 0 && ((flags[seed - 1] & CLONE_PARENT_SETTID) == 0 || *told == made));
    fill(copied, kCopySize, seed + 1);
    ended("clone", made);
    crowd();
    EXPECT(wrongWords(copied, kCopySize, seed + 1) == 0);
  }
  EXPECT(wrongWords(stack, kStack / 2, 7) == 0);
  EXPECT(clone(NULL, stack, SIGCHLD, NULL) == -1 && errno == EINVAL);
  return done("copy_clone");
}
