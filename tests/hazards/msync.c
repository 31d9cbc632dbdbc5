// SPDX-License-Identifier: Apache-2.0
// msync of far anonymous memory does nothing, and says so; of a file mapped into it, it writes.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  EXPECT(msync(data, size, MS_SYNC) == 0 && msync(data, size, MS_ASYNC) == 0);
  EXPECT(msync(data, size, MS_SYNC | MS_INVALIDATE) == 0);
  const int file = fileOf(16 * kPage, 5);
  char* part = data + 32 * kPage;
  EXPECT(mmap(part, 16 * kPage, kRw, MAP_SHARED | MAP_FIXED, file, 0) == part);
  EXPECT(wrongWords(part, 16 * kPage, 5) == 0);
  fill(part, 16 * kPage, 6);
  EXPECT(msync(data, size, MS_SYNC) == 0);
  char* copy = mapPlain(16 * kPage);
  EXPECT(pread(file, copy, 16 * kPage, 0) == 16 * kPage && wrongWords(copy, 16 * kPage, 6) == 0);
  EXPECT(munmap(data + 60 * kPage, kPage) == 0);
  errno = 0;
  EXPECT(msync(data, size, MS_SYNC) == -1 && errno == ENOMEM);
  tell("data", data, 32 * kPage);
  return done("msync");
}
