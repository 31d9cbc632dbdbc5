// SPDX-License-Identifier: Apache-2.0
// O_DIRECT reads and writes with buffers in far memory (where the file system has O_DIRECT;
// elsewhere the same calls without it).
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char name[] = "hazard-XXXXXX";
  const int made = mkstemp(name);
  EXPECT(made >= 0 && ftruncate(made, (off_t)size) == 0);
  int file = open(name, O_RDWR | O_DIRECT);
  if (file < 0) file = open(name, O_RDWR);
  EXPECT(file >= 0 && unlink(name) == 0);
  char* data = farData(size, 1);
  for (int round = 0; round < 3; ++round) {
    EXPECT(pwrite(file, data, size, 0) == (ssize_t)size);
    memset(data, 0, size);
    crowd();
    for (size_t at = 0; at < size; at += 128 * 1024) {
      EXPECT(pread(file, data + at, 128 * 1024, (off_t)at) == 128 * 1024);
    }
    crowd();
    EXPECT(wrongWords(data, size, 1 + (uint64_t)round) == 0);
    fill(data, size, 2 + (uint64_t)round);
  }
  tell("data", data, size);
  return done("o_direct");
}
