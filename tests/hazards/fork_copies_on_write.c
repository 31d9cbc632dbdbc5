// SPDX-License-Identifier: Apache-2.0
// After fork neither side sees what the other writes, wherever the pages are, and both have more
// data than local memory.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    EXPECT(read(ends[0], &byte, 1) == 1);  // the parent has written by now
    EXPECT(wrongWords(data, size, 1) == 0);
    fill(data, size, 3);
    crowd();
    EXPECT(wrongWords(data, size, 3) == 0);
    tell("child", data, size);
    return done("child");
  }
  fill(data, size, 2);
  crowd();
  EXPECT(write(ends[1], "x", 1) == 1);
  ended("child", child);
  EXPECT(wrongWords(data, size, 2) == 0);
  tell("parent", data, size);
  return done("fork_copies_on_write");
}
