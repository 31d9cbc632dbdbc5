// SPDX-License-Identifier: Apache-2.0
// Aligned memory the way V8, mimalloc and tcmalloc get it: reserve more than needed, with a hint or
// without, cut off head and tail, open the rest. What was cut off is not mapped any more.
#include "tests/hazards/hazard.h"

static int isMapped(char* page) {
  unsigned char there;
  return mincore(page, kPage, &there) == 0;
}

int main(void) {
  enum { kChunks = 48 };
  static char* chunks[kChunks];
  const size_t size = 512 * 1024;
  crowd();
  for (size_t i = 0; i < kChunks; ++i) {
    void* hint = i % 2 == 0 ? NULL : (void*)(wordAt(3, i) % ((uintptr_t)1 << 46) & ~(size - 1));
    const size_t asked = 2 * size - kPage;
    char* all = (char*)mmap(hint, asked, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
    EXPECT(all != MAP_FAILED);
    char* chunk = (char*)(((uintptr_t)all + size - 1) & ~(size - 1));
    if (chunk > all) EXPECT(munmap(all, (size_t)(chunk - all)) == 0);
    if (all + asked > chunk + size)
      EXPECT(munmap(chunk + size, (size_t)(all + asked - chunk) - size) == 0);
    if (chunk > all) EXPECT(!isMapped(chunk - kPage));
    EXPECT(mprotect(chunk, size, kRw) == 0);
    fill(chunk, size, i);
    chunks[i] = chunk;
  }
  crowd();
  for (size_t i = 0; i < kChunks; ++i) EXPECT(wrongWords(chunks[i], size, i) == 0);
  for (size_t i = 0; i < kChunks; i += 3) EXPECT(munmap(chunks[i], size) == 0);
  crowd();
  uint64_t sum = 0;
  for (size_t i = 0; i < kChunks; ++i) {
    if (i % 3 != 0) sum += digest(chunks[i], size);
  }
  printf("%016llx\n", (unsigned long long)sum);
  return done("reserve_trim");
}
