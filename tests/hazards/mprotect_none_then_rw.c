// SPDX-License-Identifier: Apache-2.0
// Memory that is hidden with PROT_NONE for a while and opened again has its contents, also when the
// program reserved it with PROT_NONE first and opens it piece by piece.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* hidden = farData(size, 1);
  EXPECT(mprotect(hidden, size, PROT_NONE) == 0);
  crowd();
  errno = 0;
  EXPECT(write(fileOf(kPage, 1), hidden, kPage) == -1 && errno == EFAULT);
  EXPECT(mprotect(hidden, size / 2, PROT_READ) == 0);
  EXPECT(wrongWords(hidden, size / 2, 1) == 0);
  crowd();
  EXPECT(mprotect(hidden, size, kRw) == 0);
  EXPECT(wrongWords(hidden, size, 1) == 0);
  char* reserved = (char*)mmap(NULL, 4 * size, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  for (size_t at = 0; at < 2 * size; at += MIB) {
    EXPECT(mprotect(reserved + at, MIB, kRw) == 0);
    fill(reserved + at, MIB, at);
  }
  crowd();
  for (size_t at = 0; at < 2 * size; at += MIB) EXPECT(wrongWords(reserved + at, MIB, at) == 0);
  // Taken back as a runtime does it: new memory without rights in place of the old.
  EXPECT(mmap(hidden, size, PROT_NONE, kPlain | MAP_FIXED | MAP_NORESERVE, -1, 0) == hidden);
  EXPECT(mprotect(hidden, size, kRw) == 0 && allBytesAre(hidden, 0, size));
  fill(hidden, size, 2);
  crowd();
  tell("hidden", hidden, size);
  return done("mprotect_none_then_rw");
}
