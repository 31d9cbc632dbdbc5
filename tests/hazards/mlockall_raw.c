// SPDX-License-Identifier: Apache-2.0
// mlockall by a raw system call, as Go programs make it: the kernel brings in whatever is mapped,
// also what the program knows nothing of. It must come to an end, and no byte may suffer.
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  EXPECT(syscall(SYS_mlockall, MCL_CURRENT) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  char* more = farBlock(size, 2);
  EXPECT(munmap(data + size / 2, size / 2) == 0);
  EXPECT(wrongWords(more, size, 2) == 0 && wrongWords(data, size / 2, 1) == 0);
  EXPECT(munlockall() == 0);
  crowd();
  crowd();
  EXPECT(wrongWords(more, size, 2) == 0 && wrongWords(data, size / 2, 1) == 0);
  free(more);
  tell("data", data, size / 2);
  return done("mlockall_raw");
}
