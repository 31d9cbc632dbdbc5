// SPDX-License-Identifier: Apache-2.0
// What a program keeps from core dumps stays out of them wherever its pages go: the kernel says so
// of each mapping ("dd" in /proc/self/smaps).
#include "tests/hazards/hazard.h"

/// Of [start, start + size), how many pages are in mappings that are not dumped, as /proc has it.
static size_t undumped(const char* start, size_t size) {
  const uintptr_t from = (uintptr_t)start, to = from + size;
  uintptr_t first = 0, last = 0;
  size_t pages = 0;
  char line[1024];
  FILE* maps = fopen("/proc/self/smaps", "r");
  EXPECT(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long a, b;
    char dash;
    if (sscanf(line, "%lx%c%lx", &a, &dash, &b) == 3 && dash == '-') first = a, last = b;
    if (strncmp(line, "VmFlags:", 8) != 0 || last <= from || first >= to) continue;
    const uintptr_t begin = first > from ? first : from, end = last < to ? last : to;
    if (strstr(line, " dd") != NULL) pages += (end - begin) / kPage;
  }
  fclose(maps);
  return pages;
}

static void say(const char* when, const char* data, size_t size) {
  printf("%s: %zu of %zu\n", when, undumped(data, size), size / kPage);
}

int main(void) {
  const size_t size = 6 * MIB;
  crowd();
  char* data = mapPlain(size);
  EXPECT(madvise(data + MIB, 4 * MIB, MADV_DONTDUMP) == 0);
  say("told", data, size);
  fill(data, size, 1);
  crowd();
  say("far", data, size);
  for (int i = 0; i < 3; ++i) EXPECT(wrongWords(data, size, 1) == 0);
  say("used", data, size);
  EXPECT(madvise(data + 2 * MIB, MIB, MADV_DODUMP) == 0);
  crowd();
  say("in part", data, size);
  say("the part", data + 2 * MIB, MIB);
  const pid_t child = fork();
  if (child == 0) {
    fill(data, size, 2);
    _exit(undumped(data, size) == 3 * MIB / kPage ? 3 : 4);
  }
  ended("child", child);
  fill(data, size, 3);
  crowd();
  say("forked", data, size);
  EXPECT(madvise(data + MIB, MIB, MADV_DONTNEED) == 0);
  fill(data + MIB, MIB, 4);
  say("discarded", data, size);
  char* room = (char*)mmap(NULL, 2 * size, PROT_NONE, kPlain, -1, 0);
  char* moved = (char*)mremap(data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room);
  EXPECT(moved == room);
  crowd();
  say("moved", moved, size);
  EXPECT(mmap(moved + MIB, MIB, kRw, kPlain | MAP_FIXED, -1, 0) == moved + MIB);
  say("mapped anew", moved, size);
  EXPECT(madvise(moved, size, MADV_WIPEONFORK) == 0);
  say("wiped on fork", moved, size);
  EXPECT(munmap(moved, 2 * size) == 0);
  char* other = mapPlain(size);
  say("another", other, size);
  return done("madvise_dontdump");
}
