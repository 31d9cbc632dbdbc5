// SPDX-License-Identifier: Apache-2.0
// read(2) into far memory and write(2) out of it, in sizes that begin and end within pages.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  const int file = fileOf(size, 7);
  char* data = farBlock(size, 1);
  EXPECT(lseek(file, 0, SEEK_SET) == 0);
  for (size_t at = 0; at < size;) {
    const size_t piece = at % (300 * 1024 + 8) + 1000 * 8 + 8;
    const ssize_t got = read(file, data + at, piece < size - at ? piece : size - at);
    EXPECT(got > 0);
    if (got <= 0) break;
    at += (size_t)got;
  }
  crowd();
  EXPECT(wrongWords(data, size, 7) == 0);
  fill(data, size, 8);
  crowd();
  EXPECT(pwrite(file, data, size, 0) == (ssize_t)size);
  crowd();
  EXPECT(pread(file, data, size, 0) == (ssize_t)size);
  EXPECT(wrongWords(data, size, 8) == 0);
  tell("data", data, size);
  free(data);
  return done("read_far");
}
