// SPDX-License-Identifier: Apache-2.0
// Reservations far larger than memory, one larger than any managed space: they are made, used here
// and there, and given back, at no cost for what is not touched.
#include <sys/resource.h>

#include "tests/hazards/hazard.h"

static void useSome(char* heap, size_t size) {
  const size_t stride = size / 16;
  for (size_t i = 0; i < 16; ++i) {
    EXPECT(mprotect(heap + i * stride, MIB, kRw) == 0);
    fill(heap + i * stride, MIB, i);
  }
  crowd();
  for (size_t i = 0; i < 16; ++i) EXPECT(wrongWords(heap + i * stride, MIB, i) == 0);
}

int main(void) {
  const size_t sizes[] = {(size_t)16 << 40, (size_t)1 << 40, (size_t)100 << 30};
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) {
      char* heap = (char*)mmap(NULL, sizes[i], PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
      EXPECT(heap != MAP_FAILED);
      useSome(heap, sizes[i]);
      EXPECT(munmap(heap, sizes[i]) == 0);
    }
  }
  // Many that together are larger than what is managed.
  enum { kMany = 100 };
  static char* many[kMany];
  for (int i = 0; i < kMany; ++i) {
    many[i] = (char*)mmap(NULL, sizes[2], PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
    EXPECT(many[i] != MAP_FAILED && mprotect(many[i], kPage, kRw) == 0);
    many[i][5] = (char)i;
  }
  char* data = farData(4 * MIB, 1);
  for (int i = 0; i < kMany; ++i) EXPECT(many[i][5] == (char)i && munmap(many[i], sizes[2]) == 0);
  tell("data", data, 4 * MIB);
  return done("reserve_huge");
}
