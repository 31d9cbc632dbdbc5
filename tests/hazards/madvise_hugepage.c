// SPDX-License-Identifier: Apache-2.0
// Advice about huge pages and merging, on memory that is far, local and new.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  EXPECT(madvise(data, size, MADV_HUGEPAGE) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  char* fresh = mapPlain(size);
  EXPECT(madvise(fresh, size, MADV_HUGEPAGE) == 0);
  fill(fresh, size, 2);
  crowd();
  EXPECT(madvise(fresh, size, MADV_NOHUGEPAGE) == 0);
  EXPECT(madvise(fresh, size, MADV_MERGEABLE) == 0 && madvise(fresh, size, MADV_UNMERGEABLE) == 0);
  EXPECT(madvise(fresh, size, MADV_RANDOM) == 0 && madvise(fresh, size, MADV_SEQUENTIAL) == 0);
  EXPECT(madvise(fresh, size, MADV_DONTDUMP) == 0 && madvise(fresh, size, MADV_DODUMP) == 0);
  EXPECT(wrongWords(fresh, size, 2) == 0 && wrongWords(data, size, 1) == 0);
  errno = 0;
  EXPECT(madvise(fresh, size, 12345) == -1 && errno == EINVAL);
  errno = 0;
  EXPECT(posix_madvise(fresh, size, POSIX_MADV_WILLNEED) == 0);
  tell("data", fresh, size);
  return done("madvise_hugepage");
}
