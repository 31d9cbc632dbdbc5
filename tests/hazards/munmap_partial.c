// SPDX-License-Identifier: Apache-2.0
// Holes are cut into far mappings, in every form; what remains keeps its bytes, and new mappings
// take nothing over from old ones.
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  for (size_t at = 2 * kPage; at + 64 * kPage <= size; at += 64 * kPage) {
    EXPECT(munmap(data + at, (1 + at / kPage % 5) * kPage - 17) == 0);
  }
  crowd();
  for (size_t at = 2 * kPage; at + 64 * kPage <= size; at += 64 * kPage) {
    const size_t hole = (1 + at / kPage % 5) * kPage;
    EXPECT(wrongFrom(data + at + hole, 64 * kPage - hole - 2 * kPage, 1, (at + hole) / 8) == 0);
  }
  char* fresh = mapPlain(size);
  EXPECT(allBytesAre(fresh, 0, size));
  fill(fresh, size, 2);
  EXPECT(munmap(data, size) == 0);  // holes and all
  crowd();
  EXPECT(wrongWords(fresh, size, 2) == 0);
  // Trimmed to an alignment, as allocators do.
  char* aligned = (char*)(((uintptr_t)fresh + 4 * MIB - 1) & ~(uintptr_t)(4 * MIB - 1));
  if (aligned > fresh) EXPECT(munmap(fresh, (size_t)(aligned - fresh)) == 0);
  EXPECT(munmap(aligned + 4 * MIB, size - 4 * MIB - (size_t)(aligned - fresh)) == 0);
  EXPECT(wrongFrom(aligned, 4 * MIB, 2, (size_t)(aligned - fresh) / 8) == 0);
  return done("munmap_partial");
}
