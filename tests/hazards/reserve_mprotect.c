// SPDX-License-Identifier: Apache-2.0
// A heap that is reserved without access rights and opened by mprotect, a small piece at a time, as
// the C library's arenas and mimalloc do it: hidden again, its bytes stay; discarded, they are
// zero.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB, step = 132 * 1024;
  crowd();
  char* heap = (char*)mmap(NULL, 64 * MIB, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(heap != MAP_FAILED);
  size_t open = 0;
  for (uint64_t i = 0; open + step <= size; ++i, open += step) {
    EXPECT(mprotect(heap + open, step, kRw) == 0);
    fill(heap + open, step, i);
  }
  crowd();
  for (uint64_t i = 0; i < open / step; ++i) EXPECT(wrongWords(heap + i * step, step, i) == 0);
  // The second half is hidden for a while; of the rest every other MiB is given up.
  EXPECT(mprotect(heap + 8 * MIB, 8 * MIB, PROT_NONE) == 0);
  for (size_t at = 0; at < 8 * MIB; at += 2 * MIB) {
    EXPECT(madvise(heap + at, MIB, MADV_DONTNEED) == 0);
    EXPECT(allBytesAre(heap + at, 0, MIB));
  }
  crowd();
  EXPECT(mprotect(heap + 8 * MIB, 8 * MIB, kRw) == 0);
  tell("heap", heap, open);
  // To the end, through the parts that were never open.
  EXPECT(mprotect(heap, 64 * MIB, kRw) == 0);
  EXPECT(allBytesAre(heap + 17 * MIB, 0, 47 * MIB));
  fill(heap + 30 * MIB, 16 * MIB, 9);
  crowd();
  EXPECT(wrongWords(heap + 30 * MIB, 16 * MIB, 9) == 0);
  EXPECT(munmap(heap, 64 * MIB) == 0);
  return done("reserve_mprotect");
}
