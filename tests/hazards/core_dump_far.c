// SPDX-License-Identifier: Apache-2.0
// What the program has in a tier that can be loaded from is in its core, as if it were local.
#include "tests/hazards/core_dump.h"

enum { kPages = 10240 };  // 40 MiB

static void dies(void* unused) {
  (void)unused;
  crowd();
  char* data = mapPlain((size_t)kPages * kPage);
  markPages(data, kPages, 7);
  crowd();
  abort();
}

int main(void) {
  crowd();  // this process has far memory, too
  if (coresComeHere()) {
    const int fd = coreOf(dies, NULL);
    EXPECT(fd >= 0);
    printf("%zu pages of %d\n", pagesIn(fd, 7, kPages), kPages);
    close(fd);
  } else {
    printf("cores do not come here: nothing to see\n");
  }
  return done("core_dump_far");
}
