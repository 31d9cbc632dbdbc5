// SPDX-License-Identifier: Apache-2.0
// Pages that are zeros when they go: pages that were written and wiped, that only one byte keeps
// from being zeros, that a child has too, that may only be read for a while.
#include "tests/hazards/hazard.h"

enum { kPages = 4096, kSize = kPages * kPage };

/// Wipes all but every third page; of every seventh, the last byte stays.
static void wipe(char* data) {
  for (size_t page = 0; page < kPages; ++page) {
    if (page % 3 != 0) memset(data + page * kPage, 0, kPage);
    if (page % 7 == 0) data[page * kPage + kPage - 1] = 1;
  }
}

static size_t wrongPages(const char* data) {
  static const char kZeros[kPage];
  size_t wrong = 0;
  for (size_t page = 0; page < kPages; ++page) {
    const char* at = data + page * kPage;
    const char last = page % 7 == 0   ? 1
                      : page % 3 == 0 ? (char)(wordAt(1, (page + 1) * 512 - 1) >> 56)
                                      : 0;
    wrong += at[kPage - 1] != last;
    if (page % 3 != 0)
      wrong += memcmp(at, kZeros, kPage - 1) != 0;
    else
      wrong += wrongFrom(at, kPage - 8, 1, page * 512) != 0;
  }
  return wrong;
}

/// Writes a word into every fifth page, and looks at all of them.
static void writeSome(char* data, uint64_t seed) {
  for (size_t page = 0; page < kPages; page += 5) fill(data + page * kPage + 64, 8, seed + page);
  crowd();
  for (size_t page = 0; page < kPages; page += 5) {
    EXPECT(wrongWords(data + page * kPage + 64, 8, seed + page) == 0);
  }
}

int main(void) {
  char* data = farData(kSize, 1);
  wipe(data);
  crowd();
  EXPECT(wrongPages(data) == 0);
  crowd();
  EXPECT(mprotect(data, kSize, PROT_READ) == 0);
  EXPECT(wrongPages(data) == 0);
  crowd();
  EXPECT(mprotect(data, kSize, kRw) == 0);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (wrongPages(data) != 0) _exit(3);
    writeSome(data, 100);
    tell("child", data, kSize);
    fflush(stdout);
    _exit(failures());
  }
  ended("child", child);
  EXPECT(wrongPages(data) == 0);
  writeSome(data, 200);
  tell("parent", data, kSize);
  char* moved = mremap(data, kSize, 2 * kSize, MREMAP_MAYMOVE);
  EXPECT(moved != MAP_FAILED);
  tell("moved", moved, 2 * kSize);
  EXPECT(madvise(moved, kSize, MADV_DONTNEED) == 0);
  crowd();
  EXPECT(allBytesAre(moved, 0, 2 * kSize));
  return done("zero_pages");
}
