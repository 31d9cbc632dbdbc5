// SPDX-License-Identifier: Apache-2.0
// MAP_FIXED of a file over far data, private and shared, and anonymous memory over that again.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB, part = 2 * MIB;
  const int file = fileOf(part, 7);
  char* data = farData(size, 1);
  char* copied = data + 3 * MIB;
  EXPECT(mmap(copied, part, kRw, MAP_PRIVATE | MAP_FIXED, file, 0) == copied);
  char* shared = data + 8 * MIB;
  EXPECT(mmap(shared, part, kRw, MAP_SHARED | MAP_FIXED, file, 0) == shared);
  crowd();
  EXPECT(wrongWords(copied, part, 7) == 0 && wrongWords(shared, part, 7) == 0);
  EXPECT(wrongFrom(shared + part, 6 * MIB, 1, (8 * MIB + part) / 8) == 0);
  fill(copied, part, 8);
  fill(shared, part, 9);
  crowd();
  EXPECT(wrongWords(copied, part, 8) == 0 && wrongWords(shared, part, 9) == 0);
  tell("data", data, size);
  // Back to anonymous memory, over file and data alike.
  EXPECT(mmap(shared - MIB, 4 * MIB, kRw, kPlain | MAP_FIXED, -1, 0) == shared - MIB);
  EXPECT(allBytesAre(shared - MIB, 0, 4 * MIB));
  fill(shared - MIB, 4 * MIB, 10);
  crowd();
  tell("data", data, size);
  EXPECT(munmap(data, size) == 0);
  return done("fixed_file");
}
