// SPDX-License-Identifier: Apache-2.0
// System calls of a forked child on inherited far memory: read into it, write out of it, memory
// calls.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  const int file = fileOf(size, 5);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    EXPECT(pwrite(file, data, size / 2, 0) == (ssize_t)size / 2);
    EXPECT(pread(file, data + size / 2, size / 2, (off_t)(size / 2)) == (ssize_t)size / 2);
    EXPECT(wrongFrom(data + size / 2, size / 2, 5, size / 16) == 0);
    data = (char*)mremap(data, size, 2 * size, MREMAP_MAYMOVE);
    EXPECT(data != MAP_FAILED && wrongWords(data, size / 2, 1) == 0);
    EXPECT(madvise(data, kPage, MADV_DONTNEED) == 0 && allBytesAre(data, 0, kPage));
    EXPECT(munmap(data, 2 * size) == 0);
    return done("child");
  }
  ended("child", child);
  EXPECT(wrongWords(data, size, 1) == 0);
  EXPECT(pread(file, data, size / 2, 0) == (ssize_t)size / 2);
  EXPECT(wrongWords(data, size, 1) == 0);
  return done("fork_system_calls");
}
