// SPDX-License-Identifier: Apache-2.0
// vmsplice gives pages of far memory to a pipe, splice and tee pass them on: what comes out is what
// the pages held, although the memory moves meanwhile.
#include <sys/uio.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB, piece = 16 * kPage;
  char* data = farData(size, 1);
  char* back = mapPlain(size);
  const int file = fileOf(kPage, 1);
  int ends[2], more[2];
  EXPECT(pipe(ends) == 0 && pipe(more) == 0);
  size_t out = 0;
  for (size_t at = 0; at < size; at += piece) {
    struct iovec part = {data + at, piece};
    EXPECT(vmsplice(ends[1], &part, 1, 0) == (ssize_t)piece);
    if (at % (64 * piece) == 0) crowd();
    for (size_t got = 0; got < piece;) {
      ssize_t moved;
      if (at / piece % 2 == 0) {
        moved = read(ends[0], back + at + got, piece - got);
      } else {
        loff_t to = (loff_t)(at + got);
        moved = splice(ends[0], NULL, file, &to, piece - got, 0);
        EXPECT(moved > 0 &&
               pread(file, back + at + got, (size_t)moved, (off_t)(at + got)) == moved);
      }
      EXPECT(moved > 0);
      if (moved <= 0) return done("splice_far");
      got += (size_t)moved;
    }
    out += piece;
  }
  crowd();
  EXPECT(wrongWords(back, size, 1) == 0 && wrongWords(data, size, 1) == 0);
  tell("back", back, out);
  return done("splice_far");
}
