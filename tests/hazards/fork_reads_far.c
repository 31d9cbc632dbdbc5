// SPDX-License-Identifier: Apache-2.0
// A forked child reads what was far when it was forked, and the parent goes on.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    if (child == 0) _exit(wrongWords(data, size, 1) == 0 ? 3 : 4);
    ended("child", child);
    crowd();
  }
  EXPECT(wrongWords(data, size, 1) == 0);
  tell("data", data, size);
  return done("fork_reads_far");
}
