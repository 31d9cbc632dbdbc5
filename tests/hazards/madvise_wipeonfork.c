// SPDX-License-Identifier: Apache-2.0
// MADV_WIPEONFORK keeps its promise, on far memory too: the child sees zeros, the parent its bytes.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size / 2, MADV_WIPEONFORK) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  const pid_t child = fork();
  if (child == 0) _exit(allBytesAre(data, 0, size / 2) ? 3 : 4);
  ended("child", child);
  fill(data, size, 2);
  crowd();
  EXPECT(wrongWords(data, size, 2) == 0);
  EXPECT(madvise(data, size, MADV_KEEPONFORK) == 0);
  EXPECT(munmap(data, size) == 0);
  tell("done", &size, 8);
  return done("madvise_wipeonfork");
}
