// SPDX-License-Identifier: Apache-2.0
// The mmap family on anonymous private memory: zeros, partial unmaps, protections, advice, moves,
// fixed mappings, errors. Runs with and without the preload; both must print the same.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { kPage = 4096, kPlain = MAP_PRIVATE | MAP_ANONYMOUS, kRw = PROT_READ | PROT_WRITE };
static const size_t kSize = 1 << 20;

static sigjmp_buf after_fault;
static void onFault(int signal) {
  (void)signal;
  siglongjmp(after_fault, 1);
}

/// 1 if writing the byte is refused.
static int writeFaults(volatile char* at) {
  if (sigsetjmp(after_fault, 1) != 0) return 1;
  *at = *at;
  return 0;
}
static int readFaults(volatile char* at) {
  if (sigsetjmp(after_fault, 1) != 0) return 1;
  (void)*at;
  return 0;
}

static char* mapPlain(size_t size) {
  char* range = mmap(NULL, size, kRw, kPlain, -1, 0);
  EXPECT(range != MAP_FAILED);
  return range;
}

static void partialUnmaps(void) {
  char* range = mapPlain(kSize);
  EXPECT(allBytesAre(range, 0, kSize));
  memset(range, 1, kSize);
  EXPECT(munmap(range, 10 * kPage) == 0);                     // head
  EXPECT(munmap(range + kSize - 5 * kPage, 5 * kPage) == 0);  // tail
  EXPECT(munmap(range + 100 * kPage, 3 * kPage - 7) == 0);    // middle, size rounded up
  EXPECT(range[10 * kPage] == 1 && range[99 * kPage] == 1 && range[103 * kPage] == 1);
  EXPECT(readFaults(range) && readFaults(range + kSize - kPage));
  EXPECT(readFaults(range + 100 * kPage) && readFaults(range + 102 * kPage));
  EXPECT(allBytesAre(range + 103 * kPage, 1, 40 * kPage));
  EXPECT(munmap(range + 10 * kPage, 90 * kPage) == 0);
  EXPECT(munmap(range + 103 * kPage, kSize - 108 * kPage) == 0);
  // Trimmed to an alignment, as allocators do it.
  char* wide = mapPlain(4 << 20);
  char* aligned = (char*)(((uintptr_t)wide + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
  if (aligned > wide) EXPECT(munmap(wide, (size_t)(aligned - wide)) == 0);
  const size_t rest = (size_t)(wide + (4 << 20) - (aligned + (2 << 20)));
  if (rest > 0) EXPECT(munmap(aligned + (2 << 20), rest) == 0);
  memset(aligned, 3, 2 << 20);
  EXPECT(munmap(aligned, 2 << 20) == 0);
}

static void protections(void) {
  char* range = mapPlain(kSize);
  memset(range, 9, kSize);
  EXPECT(mprotect(range + 4 * kPage, 2 * kPage, PROT_READ) == 0);
  EXPECT(writeFaults(range + 4 * kPage) && !writeFaults(range + 3 * kPage));
  EXPECT(range[5 * kPage] == 9 && !writeFaults(range + 6 * kPage));
  EXPECT(mprotect(range + 4 * kPage, kPage, PROT_NONE) == 0);
  EXPECT(readFaults(range + 4 * kPage));
  EXPECT(mprotect(range, kSize, kRw) == 0);
  EXPECT(allBytesAre(range, 9, kSize));
  errno = 0;
  EXPECT(mprotect(range + 1, kPage, kRw) == -1 && errno == EINVAL);
  EXPECT(munmap(range, kSize) == 0);
  char* readable = mmap(NULL, kSize, PROT_READ, kPlain, -1, 0);
  EXPECT(readable != MAP_FAILED && allBytesAre(readable, 0, kSize) && writeFaults(readable));
  EXPECT(munmap(readable, kSize) == 0);
}

static void advice(void) {
  char* range = mapPlain(kSize);
  memset(range, 5, kSize);
  EXPECT(madvise(range + 2 * kPage, 3 * kPage, MADV_DONTNEED) == 0);
  EXPECT(allBytesAre(range + 2 * kPage, 0, 3 * kPage));
  EXPECT(allBytesAre(range, 5, 2 * kPage) && allBytesAre(range + 5 * kPage, 5, kPage));
  EXPECT(madvise(range, kSize, MADV_WILLNEED) == 0);
  EXPECT(madvise(range, kSize, MADV_COLD) == 0);
  EXPECT(madvise(range + 5 * kPage, kSize - 5 * kPage, MADV_PAGEOUT) == 0);
  EXPECT(allBytesAre(range + 5 * kPage, 5, kSize - 5 * kPage));
  EXPECT(madvise(range, kSize, MADV_SEQUENTIAL) == 0);
  EXPECT(madvise(range, kSize, MADV_NORMAL) == 0);
  EXPECT(madvise(range, kSize, MADV_DONTDUMP) == 0);
  EXPECT(range[0] == 5);
  errno = 0;
  EXPECT(madvise(range + 1, kPage, MADV_DONTNEED) == -1 && errno == EINVAL);
  errno = 0;
  EXPECT(madvise(range, kPage, 9999) == -1 && errno == EINVAL);
  EXPECT(munmap(range, kSize) == 0);
}

static void moves(void) {
  char* range = mapPlain(kSize);
  for (size_t i = 0; i < kSize; i += kPage) range[i] = (char)(i / kPage);
  char* grown = mremap(range, kSize, 4 * kSize, MREMAP_MAYMOVE);
  EXPECT(grown != MAP_FAILED);
  for (size_t i = 0; i < kSize; i += kPage) EXPECT(grown[i] == (char)(i / kPage));
  EXPECT(allBytesAre(grown + kSize, 0, 3 * kSize));
  EXPECT(mremap(grown, 4 * kSize, kSize / 2, 0) == grown);
  EXPECT(readFaults(grown + kSize / 2) && grown[kPage] == 1);
  char* target = mmap(NULL, kSize, PROT_NONE, kPlain, -1, 0);
  EXPECT(mremap(grown, kSize / 2, kSize / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
  for (size_t i = 0; i < kSize / 2; i += kPage) EXPECT(target[i] == (char)(i / kPage));
  EXPECT(readFaults(grown));
  EXPECT(munmap(target, kSize) == 0);
  errno = 0;
  range = mapPlain(kSize);
  EXPECT(mremap(range + 1, kSize, kSize, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  EXPECT(mremap(range, kSize, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  // A part out of the middle.
  range[8 * kPage] = 88;
  char* part = mremap(range + 8 * kPage, kPage, 64 * kPage, MREMAP_MAYMOVE);
  EXPECT(part != MAP_FAILED && part[0] == 88 && part[63 * kPage] == 0);
  EXPECT(readFaults(range + 8 * kPage) && range[9 * kPage] == 0);
  EXPECT(munmap(part, 64 * kPage) == 0);
  EXPECT(munmap(range, 8 * kPage) == 0 && munmap(range + 9 * kPage, kSize - 9 * kPage) == 0);
}

static void fixedMappings(void) {
  char* range = mapPlain(kSize);
  memset(range, 4, kSize);
  EXPECT(mmap(range + 4 * kPage, 4 * kPage, kRw, kPlain | MAP_FIXED, -1, 0) == range + 4 * kPage);
  EXPECT(allBytesAre(range + 4 * kPage, 0, 4 * kPage) && range[8 * kPage] == 4);
  range[5 * kPage] = 6;
  EXPECT(mmap(range + 20 * kPage, kPage, PROT_NONE, kPlain | MAP_FIXED, -1, 0) ==
         range + 20 * kPage);
  EXPECT(readFaults(range + 20 * kPage));
  // A file over part of it: the file shows through, and goes again.
  FILE* file = tmpfile();
  char page[kPage];
  memset(page, 77, sizeof page);
  EXPECT(fwrite(page, 1, sizeof page, file) == sizeof page && fflush(file) == 0);
  EXPECT(mmap(range + 40 * kPage, kPage, kRw, MAP_SHARED | MAP_FIXED, fileno(file), 0) ==
         range + 40 * kPage);
  EXPECT(allBytesAre(range + 40 * kPage, 77, kPage));
  range[40 * kPage] = 78;
  EXPECT(range[39 * kPage] == 4 && range[41 * kPage] == 4);
  EXPECT(mprotect(range + 39 * kPage, 3 * kPage, PROT_READ) == 0);  // across both kinds
  EXPECT(writeFaults(range + 39 * kPage) && writeFaults(range + 40 * kPage));
  EXPECT(pread(fileno(file), page, 1, 0) == 1 && page[0] == 78);
  EXPECT(munmap(range, kSize) == 0);
  EXPECT(readFaults(range + 40 * kPage) && readFaults(range + 41 * kPage));
  fclose(file);
}

static void errorsAndOtherKinds(void) {
  errno = 0;
  EXPECT(mmap(NULL, 0, kRw, kPlain, -1, 0) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  EXPECT(mmap(NULL, SIZE_MAX / 2, kRw, kPlain, -1, 0) == MAP_FAILED && errno == ENOMEM);
  char* range = mapPlain(kSize);
  errno = 0;
  EXPECT(munmap(range + 1, kPage) == -1 && errno == EINVAL);
  errno = 0;
  EXPECT(munmap(range, 0) == -1 && errno == EINVAL);
  EXPECT(munmap(range, kSize) == 0);
  // Reservations stay the kernel's, and can be opened piecemeal.
  char* reserved = mmap(NULL, 1u << 30, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(reserved != MAP_FAILED && readFaults(reserved));
  EXPECT(mprotect(reserved + kSize, kSize, kRw) == 0);
  memset(reserved + kSize, 1, kSize);
  EXPECT(mmap(reserved, kSize, kRw, kPlain | MAP_FIXED, -1, 0) == reserved);
  EXPECT(reserved[0] == 0 && munmap(reserved, 1u << 30) == 0);
  char* stack = mmap(NULL, kSize, kRw, kPlain | MAP_STACK, -1, 0);
  EXPECT(stack != MAP_FAILED && munmap(stack, kSize) == 0);
  char* populated = mmap(NULL, kSize, kRw, kPlain | MAP_POPULATE | MAP_NORESERVE, -1, 0);
  EXPECT(populated != MAP_FAILED && allBytesAre(populated, 0, kSize));
  EXPECT(munmap(populated, kSize) == 0);
}

static void churn(void) {
  enum { kRanges = 200 };
  static char* ranges[kRanges];
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < kRanges; ++i) {
      const size_t size = (size_t)(17 + (i * 37) % 200) * kPage;
      if (ranges[i] != NULL) {
        EXPECT(ranges[i][0] == (char)i && ranges[i][size - 1] == (char)i);
        EXPECT(munmap(ranges[i], size) == 0);
        ranges[i] = NULL;
      }
      if ((i + round) % 3 != 0) {
        ranges[i] = mapPlain(size);
        EXPECT(ranges[i][0] == 0 && ranges[i][size - 1] == 0);
        ranges[i][0] = ranges[i][size - 1] = (char)i;
      }
    }
  }
}

int main(void) {
  struct sigaction action = {.sa_handler = onFault};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  partialUnmaps();
  protections();
  advice();
  moves();
  fixedMappings();
  errorsAndOtherKinds();
  churn();
  printf("mmap family checked\n");
  return failures();
}
