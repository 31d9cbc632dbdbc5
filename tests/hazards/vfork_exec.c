// SPDX-License-Identifier: Apache-2.0
// vfork, in a program whose data are far: the child shares the memory, fails to exec, execs, or
// exits.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = vfork();
    if (child == 0) {
      // Allowed by Linux, if not by POSIX: memory is shared until the exec.
      if (wrongFrom(data + (size_t)round * kPage, kPage, 1, (size_t)round * kPage / 8) != 0)
        _exit(9);
      data[(size - kPage) + (size_t)round] = 'v';
      if (round % 2 == 0) execl("/bin/true", "true", (char*)NULL);
      execl("/does/not/exist", "no", (char*)NULL);
      _exit(round);
    }
    ended("child", child);
  }
  crowd();
  EXPECT(wrongWords(data, size - kPage, 1) == 0);
  tell("data", data, size);
  return done("vfork_exec");
}
