// SPDX-License-Identifier: Apache-2.0
// A heap that is reserved and then mapped piece by piece with MAP_FIXED, and given back by mapping
// it without access rights once more, as a JVM does it: what comes back is zero.
#include "tests/hazards/hazard.h"

enum { kPieces = 24 };
static const size_t piece = 3 * MIB / 2;  // so that granules are shared

static char* commit(char* at, size_t size) {
  return (char*)mmap(at, size, kRw, kPlain | MAP_FIXED, -1, 0);
}
static char* uncommit(char* at, size_t size) {
  return (char*)mmap(at, size, PROT_NONE, kPlain | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

int main(void) {
  crowd();
  char* heap = (char*)mmap(NULL, 256 * MIB, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(heap != MAP_FAILED);
  static uint64_t seeds[kPieces];
  static int open[kPieces];
  for (uint64_t round = 1; round < 200; ++round) {
    const int i = (int)(wordAt(7, round) % kPieces);
    char* at = heap + (size_t)i * piece;
    if (open[i]) {
      EXPECT(wrongWords(at, piece, seeds[i]) == 0);
      EXPECT(uncommit(at, piece) == at);
    } else {
      EXPECT(commit(at, piece) == at);
      EXPECT(allBytesAre(at, 0, piece));
      fill(at, piece, seeds[i] = round);
    }
    open[i] = !open[i];
    if (round % 50 == 0) crowd();
  }
  for (int i = 0; i < kPieces; ++i) {
    char* at = heap + (size_t)i * piece;
    if (!open[i]) EXPECT(commit(at, piece) == at && allBytesAre(at, 0, piece));
  }
  crowd();
  tell("heap", heap, kPieces * piece);
  // Committed again without being given up first: zeros all the same.
  EXPECT(commit(heap, kPieces * piece) == heap && allBytesAre(heap, 0, kPieces * piece));
  EXPECT(munmap(heap, 256 * MIB) == 0);
  return done("reserve_fixed");
}
