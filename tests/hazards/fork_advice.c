// SPDX-License-Identifier: Apache-2.0
// MADV_DONTFORK: such memory is not in the child at all, and is again after MADV_DOFORK.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size / 2, MADV_DONTFORK) == 0);
  for (int round = 0; round < 2; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(*(volatile char*)(data + 5) == data[5] ? 3 : 4);
    ended("child", child);
    EXPECT(madvise(data, size, MADV_DOFORK) == 0);
  }
  tell("data", data, size);
  return done("fork_advice");
}
