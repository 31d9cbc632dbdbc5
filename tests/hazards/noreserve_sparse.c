// SPDX-License-Identifier: Apache-2.0
// A mapping far larger than memory, with MAP_NORESERVE, touched here and there.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = (size_t)64 << 30, step = (size_t)48 << 20;
  crowd();
  char* wide = (char*)mmap(NULL, size, kRw, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(wide != MAP_FAILED);
  uint64_t sum = 0;
  for (size_t at = 0; at < size; at += step) {
    EXPECT(wide[at + kPage] == 0);
    fill(wide + at, kPage, at);
  }
  crowd();
  for (size_t at = 0; at < size; at += step) {
    EXPECT(wrongWords(wide + at, kPage, at) == 0 && wide[at + kPage] == 0);
    sum += digest(wide + at, kPage);
  }
  printf("sum %016llx\n", (unsigned long long)sum);
  EXPECT(munmap(wide, size) == 0);
  return done("noreserve_sparse");
}
