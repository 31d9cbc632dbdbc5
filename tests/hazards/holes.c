// SPDX-License-Identifier: Apache-2.0
// Calls on ranges with holes fail as the kernel says, and new mappings fit into the holes: fixed,
// fixed without replacing, and files, which must not be overrun by later allocations.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  char* hole = data + 4 * MIB;
  EXPECT(munmap(hole, 4 * MIB) == 0);
  errno = 0;
  EXPECT(madvise(data, size, MADV_WILLNEED) == -1 && errno == ENOMEM);
  errno = 0;
  EXPECT(mprotect(hole - kPage, 2 * kPage, kRw) == -1 && errno == ENOMEM);
  errno = 0;
  EXPECT(mremap(hole, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
  EXPECT(mmap(hole, MIB, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0) == hole);
  errno = 0;
  EXPECT(mmap(hole, 2 * MIB, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
         errno == EEXIST);
  fill(hole, MIB, 2);
  const int file = fileOf(MIB, 3);
  EXPECT(mmap(hole + MIB, MIB, kRw, MAP_SHARED | MAP_FIXED, file, 0) == hole + MIB);
  char* others[32];
  for (int i = 0; i < 32; ++i) {
    others[i] = mapPlain(MIB / 2);
    fill(others[i], MIB / 2, 10 + (uint64_t)i);
  }
  crowd();
  EXPECT(wrongWords(hole, MIB, 2) == 0 && wrongWords(hole + MIB, MIB, 3) == 0);
  for (int i = 0; i < 32; ++i) EXPECT(wrongWords(others[i], MIB / 2, 10 + (uint64_t)i) == 0);
  // A file into memory that was never touched: its neighbours are placed later, it stays.
  char* fresh = mapPlain(8 * MIB);
  EXPECT(mmap(fresh + 3 * MIB, MIB, kRw, MAP_SHARED | MAP_FIXED, file, 0) == fresh + 3 * MIB);
  fill(fresh, 3 * MIB, 4);
  fill(fresh + 4 * MIB, 4 * MIB, 5);
  crowd();
  EXPECT(wrongWords(fresh, 3 * MIB, 4) == 0 && wrongWords(fresh + 3 * MIB, MIB, 3) == 0);
  tell("data", data, 4 * MIB);
  EXPECT(munmap(data, size) == 0);
  errno = 0;
  EXPECT(msync(data, size, MS_ASYNC) == -1 && errno == ENOMEM);
  return done("holes");
}
