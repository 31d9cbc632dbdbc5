// SPDX-License-Identifier: Apache-2.0
// A child writes a snapshot of everything while its parent goes on changing it, as databases do.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farBlock(size, 1);
  const int file = memfd_create("snapshot", MFD_CLOEXEC);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    for (size_t at = 0; at < size; at += MIB) {
      if (pwrite(file, data + at, MIB, (off_t)at) != (ssize_t)MIB) _exit(3);
    }
    _exit(0);
  }
  for (uint64_t round = 2; round < 5; ++round) fill(data, size, round);
  ended("child", child);
  EXPECT(wrongWords(data, size, 4) == 0);
  crowd();
  EXPECT(pread(file, data, size, 0) == (ssize_t)size && wrongWords(data, size, 1) == 0);
  tell("snapshot", data, size);
  return done("fork_snapshot");
}
