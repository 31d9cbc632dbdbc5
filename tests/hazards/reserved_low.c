// SPDX-License-Identifier: Apache-2.0
// Low addresses are free until somebody asks for them: CUDA's library looks in /proc/self/maps for
// a hole of some 4 GiB there, and others map there by system calls that nobody sees.
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

#define GIB ((size_t)1 << 30)

static char* at(size_t address) { return (char*)address; }
static size_t placed(void* got, size_t wanted) { return (size_t)got == wanted; }

static size_t freeFrom(size_t from, size_t end) {
  FILE* maps = fopen("/proc/self/maps", "re");
  char line[512];
  unsigned long start, last, taken = 0;
  while (fgets(line, sizeof line, maps) != NULL) {
    if (sscanf(line, "%lx-%lx", &start, &last) == 2 && start < end && last > from) ++taken;
  }
  fclose(maps);
  return taken == 0;
}

static void* rawly(size_t address, size_t size) {
  long got;
  register long flags __asm__("r10") = kPlain | MAP_FIXED_NOREPLACE;
  register long fd __asm__("r8") = -1;
  register long offset __asm__("r9") = 0;
  __asm__ volatile("syscall"
                   : "=a"(got)
                   : "0"(SYS_mmap), "D"(address), "S"(size), "d"((long)kRw), "r"(flags), "r"(fd),
                     "r"(offset)
                   : "rcx", "r11", "memory");
  return (void*)got;
}

int main(void) {
  const size_t size = 16 * MIB;
  crowd();
  EXPECT(freeFrom(4 * GIB, 48 * GIB));
  // As CUDA's library does it: a reservation, with other things mapped into it.
  char* reserved = (char*)mmap(at(8 * GIB), 4 * GIB, PROT_NONE, kPlain, -1, 0);
  EXPECT(placed(reserved, 8 * GIB));
  char* shared =
      (char*)mmap(reserved + 6 * MIB, size, kRw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  EXPECT(placed(shared, 8 * GIB + 6 * MIB));
  fill(shared, size, 1);

  char* hinted = (char*)mmap(at(20 * GIB), size, kRw, kPlain, -1, 0);
  EXPECT(placed(hinted, 20 * GIB));
  fill(hinted, size, 2);
  // The first that maps something there keeps it.
  char* raw = (char*)rawly(30 * GIB, size);
  EXPECT(placed(raw, 30 * GIB));
  fill(raw, size, 3);
  char* beside = (char*)mmap(at(30 * GIB - MIB), 4 * MIB, kRw, kPlain, -1, 0);
  EXPECT(!placed(beside, 30 * GIB - MIB));
  fill(beside, 4 * MIB, 4);
  char* fixed = (char*)mmap(at(31 * GIB), size, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT(placed(fixed, 31 * GIB));
  fill(fixed, size, 5);
  crowd();

  const pid_t child = fork();
  if (child == 0) {
    const size_t wrong = wrongWords(shared, size, 1) + wrongWords(hinted, size, 2) +
                         wrongWords(raw, size, 3) + wrongWords(beside, 4 * MIB, 4) +
                         wrongWords(fixed, size, 5);
    char* own = (char*)mmap(at(40 * GIB), size, kRw, kPlain, -1, 0);
    fill(own, size, 6);
    _exit(wrong == 0 && placed(own, 40 * GIB) && wrongWords(own, size, 6) == 0 ? 0 : 1);
  }
  ended("child", child);
  EXPECT(rawly(30 * GIB, size) == (void*)-EEXIST);
  EXPECT(munmap(raw, size) == 0 && placed(rawly(30 * GIB, size), 30 * GIB));
  EXPECT(allBytesAre(raw, 0, size));
  fill(raw, size, 7);
  raw = (char*)mremap(raw, size, 2 * size, MREMAP_MAYMOVE);
  EXPECT(raw != (char*)MAP_FAILED && wrongWords(raw, size, 7) == 0);
  tell("shared", shared, size);
  tell("hinted", hinted, size);
  tell("fixed", fixed, size);
  EXPECT(munmap(hinted, size) == 0 && munmap(reserved, 4 * GIB) == 0);
  char* again = (char*)mmap(at(9 * GIB), size, kRw, kPlain, -1, 0);
  EXPECT(placed(again, 9 * GIB) && allBytesAre(again, 0, size));
  return done("reserved_low");
}
