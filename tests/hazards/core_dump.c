// SPDX-License-Identifier: Apache-2.0
// A core holds the program's memory, not ours: with 10 MiB in use it is as large as plain, whatever
// the size of the tier behind it, and has all that is in use. For a program that is executed, and
// for a forked one.
#include "tests/hazards/core_dump.h"

enum { kPages = 2560 };  // 10 MiB

static void dies(void* unused) {
  (void)unused;
  markPages(mapPlain((size_t)kPages * kPage), kPages, 7);
  abort();
}

static void executesOne(void* self) {
  execl((const char*)self, (const char*)self, "die", (char*)NULL);
}

static void look(const char* who, int fd) {
  struct stat core = {0};
  EXPECT(fd >= 0 && fstat(fd, &core) == 0);
  const int longish = core.st_size > (off_t)(16 * MIB);
  const int large = core.st_blocks * 512 > (off_t)(12 * MIB);
  // A page that is in a fetch tier is in no core: the budget is not much larger than what is used.
  const size_t found = pagesIn(fd, 7, kPages);
  printf("%s: %s, %s on disk, %s\n", who, longish ? "too long" : "short",
         large ? "too much" : "little",
         found > kPages / 3 ? "with its memory" : "without its memory");
  if (longish || large || found <= kPages / 3) {
    fprintf(stderr, "%s: %lld bytes, %lld on disk, %zu pages of %d\n", who, (long long)core.st_size,
            (long long)core.st_blocks * 512, found, kPages);
  }
  close(fd);
}

int main(int count, char** arguments) {
  if (count > 1) dies(arguments);
  char self[512] = "";
  EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  if (coresComeHere()) {
    look("executed", coreOf(executesOne, self));
    look("forked", coreOf(dies, NULL));
  } else {
    printf("cores do not come here: nothing to see\n");
  }
  return done("core_dump");
}
