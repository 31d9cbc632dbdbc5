// SPDX-License-Identifier: Apache-2.0
// Blocks that are freed, and ranges that are replaced, while they are locked: what is handed out
// again reads as zeros, and nothing of it stays behind.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 2 * MIB;
  for (int round = 0; round < 40; ++round) {
    char* block = (char*)malloc(size);
    fill(block, size, 1);
    EXPECT(mlock(block, size) == 0);
    free(block);
    char* zeros = (char*)calloc(1, size);
    size_t set = 0;
    for (size_t i = 0; i < size; ++i) set += zeros[i] != 0;
    EXPECT(set == 0);
    fill(zeros, size, 2);
    EXPECT(wrongWords(zeros, size, 2) == 0);
    free(zeros);
  }
  char* data = farData(size, 3);
  EXPECT(mlock(data, size) == 0 && mprotect(data, size / 2, PROT_READ) == 0);
  crowd();
  EXPECT(wrongWords(data, size, 3) == 0);
  EXPECT(mmap(data, size / 4, kRw, kPlain | MAP_FIXED, -1, 0) == data);
  for (size_t i = 0; i < size / 4; ++i) EXPECT(data[i] == 0);
  crowd();
  EXPECT(wrongFrom(data + size / 4, size - size / 4, 3, size / 4 / 8) == 0);
  tell("data", data, size);
  return done("mlock_freed");
}
