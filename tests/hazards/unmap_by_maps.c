// SPDX-License-Identifier: Apache-2.0
// A child that reads /proc/self/maps and unmaps, closes or empties what it does not know: mappings
// of files that are none of the program's (checkpointers and sandboxes do). What is Tidepool's is
// not there as far as it can tell, and neither the child nor its parent may come to harm.
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

enum { kSize = 8 << 20, kMost = 256 };
// What lies below is the program's memory, of which a direct tier has mapped some.
#define LOW (1ul << 46)

typedef struct {
  char *start, *end;
} Range;

/// The mappings of files without a name, or of none that is known. No mapping is made meanwhile.
static int strangers(Range* found) {
  static char line[512];
  int count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  EXPECT(maps != NULL);
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL && count < kMost) {
    unsigned long start, end;
    char rights[8];
    if (strstr(line, "/memfd:") == NULL && strstr(line, "/dev/shm/") == NULL) continue;
    if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3 || rights[3] != 's' || start < LOW)
      continue;
    found[count++] = (Range){(char*)start, (char*)end};
  }
  fclose(maps);
  return count;
}

static int unmap(Range range, size_t size) { return munmap(range.start, size); }
static int unmapByNumber(Range range, size_t size) {
  return (int)syscall(SYS_munmap, range.start, size);
}
static int protect(Range range, size_t size) { return mprotect(range.start, size, PROT_NONE); }
static int empty(Range range, size_t size) { return madvise(range.start, size, MADV_REMOVE); }
static int takeAway(Range range, size_t size) {
  char* to = (char*)mmap(NULL, size, PROT_NONE, kPlain, -1, 0);
  return mremap(range.start, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED ? -1 : 0;
}

static void harm(int (*act)(Range, size_t), const char* what) {
  for (int round = 0; round < rounds(2, 3); ++round) {
    char* data = farData(kSize, 7);
    const pid_t child = fork();
    if (child == 0) {
      static Range found[kMost];
      const int count = strangers(found);
      for (int i = 0; i < count; ++i) {
        // As one, and page by page.
        act(found[i], round % 2 != 0 ? kPage : (size_t)(found[i].end - found[i].start));
      }
      const int right = wrongWords(data, kSize, 7) == 0;
      crowd();
      _exit(right ? 3 : 4);
    }
    ended(what, child);
    EXPECT(wrongWords(data, kSize, 7) == 0);
    munmap(data, kSize);
  }
}

int main(void) {
  harm(unmap, "unmaps");
  harm(unmapByNumber, "unmaps by number");
  harm(protect, "protects");
  harm(empty, "empties");
  harm(takeAway, "takes away");
  return done("unmap_by_maps");
}
