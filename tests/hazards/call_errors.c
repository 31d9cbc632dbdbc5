// SPDX-License-Identifier: Apache-2.0
// Every error and flag that the manual pages of the memory calls name, on memory that is managed,
// on holes in it and across its ends: each line is the kernel's answer in the plain run. What is
// answered otherwise is in kOtherwise, and in docs/limits.md.
#include <errno.h>
#include <sys/resource.h>
#include <sys/shm.h>

#include "tests/hazards/hazard.h"

enum { kGuardInstall = 102, kGuardRemove = 103, kCollapse = 25 };
// MADV_COLLAPSE is refused. HWPOISON and SOFT_OFFLINE would do it to the machine's memory.
static const int kOtherwise[] = {kCollapse, 100, 101};

static size_t used;
static char* data;  // used, then a hole of the same size

static void fresh(void) {
  if (data != NULL) munmap(data, 3 * used);
  used = 256 * 1024;
  char* room = (char*)mmap(NULL, 3 * used, kRw, kPlain, -1, 0);
  EXPECT(room != MAP_FAILED && munmap(room + used, used) == 0);
  data = room;
  fill(data, used, 1);
}

static void say(const char* what, long got) {
  const int error = errno;
  if (got == -1)
    printf("%s: %s\n", what, strerrorname_np(error));
  else
    printf("%s: %s\n", what, got == 0 ? "0" : "done");
  errno = 0;
}
#define SAY(call) say(#call, (long)(call))
#define SAY_FRESH(call) (fresh(), SAY(call))

static void mappings(void) {
  const int file = fileOf(64 * 1024, 3);
  const size_t all = (size_t)-1;
  SAY(mmap(NULL, 0, kRw, kPlain, -1, 0));
  SAY(mmap(NULL, used, kRw, MAP_ANONYMOUS, -1, 0));
  SAY(mmap(NULL, used, kRw, MAP_PRIVATE, -1, 0));
  SAY(mmap(NULL, used, kRw, MAP_PRIVATE, file, 12));
  SAY(mmap(NULL, all, kRw, kPlain, -1, 0));
  SAY(mmap(NULL, all / 2, kRw, kPlain, -1, 0));
  SAY(mmap(NULL, (size_t)1 << 50, PROT_NONE, kPlain | MAP_NORESERVE, -1, 0));
  SAY(mmap(data + 1, used, kRw, kPlain | MAP_FIXED, -1, 0));
  SAY(mmap(data, used, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0));
  SAY(mmap(data + used / 2, used, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0));
  SAY(mmap(data, used, kRw, MAP_PRIVATE | MAP_FIXED, -1, 0));
  SAY(mmap(data, used, kRw, MAP_SHARED | MAP_FIXED, 987654, 0));
  SAY(mmap(data, used, kRw, MAP_SHARED | MAP_FIXED, file, 12));
  EXPECT(wrongWords(data, used, 1) == 0);
  SAY_FRESH(mmap(data + used, used, kRw, kPlain | MAP_FIXED_NOREPLACE, -1, 0));
  SAY_FRESH(mmap(data + used, used, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0));
  SAY_FRESH(munmap(data, 0));
  SAY(munmap(data + 1, kPage));
  SAY(munmap(data, all));
  SAY(munmap(data, all - 4095));
  SAY(munmap(data + used, used));
  SAY(munmap(data, 3 * used));
  close(file);
}

static void moves(void) {
  char* other = mapPlain(3 * used);
  SAY_FRESH(mremap(data, used, 0, MREMAP_MAYMOVE));
  SAY_FRESH(mremap(data + 1, used, used, MREMAP_MAYMOVE));
  SAY_FRESH(mremap(data, used, used, 64));
  SAY_FRESH(mremap(data, used, used, MREMAP_FIXED, other));
  SAY_FRESH(mremap(data, used, used, MREMAP_DONTUNMAP));
  SAY_FRESH(mremap(data, used, 2 * used, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
  SAY_FRESH(mremap(data, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, other + 1));
  SAY_FRESH(mremap(data, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, data + kPage));
  SAY_FRESH(mremap(data + used, used, 2 * used, MREMAP_MAYMOVE));
  SAY_FRESH(mremap(data, 2 * used, 4 * used, MREMAP_MAYMOVE));
  SAY_FRESH(mremap(data, used, 3 * used, 0));
  SAY_FRESH(mremap(data, used, (size_t)-1, MREMAP_MAYMOVE));
  SAY_FRESH(mremap(data, used, used, 0));
  SAY_FRESH(mremap(data, used, used / 2, 0));
  SAY_FRESH(mremap(data, used, 2 * used, MREMAP_MAYMOVE | MREMAP_FIXED, other));
  munmap(other, 3 * used);
}

static void rights(void) {
  SAY_FRESH(mprotect(data + 1, kPage, PROT_READ));
  SAY_FRESH(mprotect(data, 0, PROT_READ));
  SAY_FRESH(mprotect(data, (size_t)-1, PROT_READ));
  SAY_FRESH(mprotect(data, (size_t)-4096, PROT_READ));
  SAY_FRESH(mprotect(data + used, used, PROT_READ));
  SAY_FRESH(mprotect(data, 2 * used, kRw));
  SAY_FRESH(mprotect(data, used, kRw | 0x100));
  SAY_FRESH(mprotect(data, used, kRw | 0x8));  // PROT_SEM
  SAY_FRESH(mprotect(data, used, kRw | PROT_GROWSDOWN));
  SAY_FRESH(mprotect(data, used, kRw | PROT_GROWSUP));
  SAY_FRESH(mprotect(data, used, kRw | PROT_GROWSDOWN | PROT_GROWSUP));
  SAY_FRESH(mprotect(data, used, PROT_WRITE));
  SAY_FRESH(mprotect(data, used, PROT_EXEC | PROT_READ));
  SAY_FRESH(pkey_mprotect(data, used, kRw, -1));
  SAY_FRESH(pkey_mprotect(data, used, kRw, 77));
  SAY_FRESH(pkey_mprotect(data, used, 0x100, -1));
  EXPECT(wrongWords(data, used, 1) == 0);
}

static void advices(void) {
  char what[64];
  for (int advice = -1; advice < 130; ++advice) {
    int otherwise = 0;
    for (size_t i = 0; i < sizeof kOtherwise / sizeof *kOtherwise; ++i)
      otherwise |= kOtherwise[i] == advice;
    if (otherwise) continue;
    fresh();
    snprintf(what, sizeof what, "advice %d", advice);
    say(what, madvise(data, used, advice));
    fresh();
    snprintf(what, sizeof what, "advice %d to a hole", advice);
    say(what, madvise(data + used, used, advice));
    fresh();
    snprintf(what, sizeof what, "advice %d across", advice);
    say(what, madvise(data, 2 * used, advice));
    snprintf(what, sizeof what, "advice %d posix", advice);
    errno = posix_madvise(data, kPage, advice);
    say(what, errno == 0 ? 0 : -1);
  }
  SAY_FRESH(madvise(data + 1, kPage, MADV_DONTNEED));
  SAY_FRESH(madvise(data, 0, MADV_DONTNEED));
  SAY_FRESH(madvise(data, (size_t)-1, MADV_DONTNEED));
  SAY_FRESH(madvise(data, 0, 12345));
  EXPECT(wrongWords(data, used, 1) == 0);
  SAY_FRESH(madvise(data, 100, MADV_DONTNEED));
  EXPECT(allBytesAre(data, 0, kPage) && wrongFrom(data + kPage, kPage, 1, kPage / 8) == 0);
}

static void others(void) {
  unsigned char pages[256];
  SAY_FRESH(msync(data + 1, kPage, MS_SYNC));
  SAY_FRESH(msync(data, used, 64));
  SAY_FRESH(msync(data, used, MS_SYNC | MS_ASYNC));
  SAY_FRESH(msync(data, used, MS_SYNC));
  SAY_FRESH(msync(data, used, MS_ASYNC | MS_INVALIDATE));
  SAY_FRESH(msync(data, used, 0));
  SAY_FRESH(msync(data, 0, MS_SYNC));
  SAY_FRESH(msync(data + used, 0, MS_SYNC));
  SAY_FRESH(msync(data, 2 * used, MS_SYNC));
  SAY_FRESH(msync(data, (size_t)-1, MS_SYNC));
  SAY_FRESH(mincore(data + 1, kPage, pages));
  SAY_FRESH(mincore(data, used, pages));
  SAY_FRESH(mincore(data, 0, pages));
  SAY_FRESH(mincore(data, 2 * used, pages));
  SAY_FRESH(mincore(data + used, used, pages));
  SAY_FRESH(mincore(data, used, (unsigned char*)8));
  SAY_FRESH(mincore(data, (size_t)-1, pages));
  SAY_FRESH(remap_file_pages(data, used, 0, 0, 0));
  SAY_FRESH(remap_file_pages(data, used, PROT_READ, 0, 0));
  SAY_FRESH(remap_file_pages(data + used, used, 0, 0, 0));
  SAY_FRESH(mlockall(0));
  SAY_FRESH(mlockall(64));
  SAY_FRESH(mlockall(MCL_ONFAULT));
  SAY_FRESH(mlock(data + used, used));
  SAY_FRESH(mlock(data, kPage));
  SAY(munlock(data, kPage));
}

int main(void) {
  crowd();
  fresh();
  mappings();
  moves();
  rights();
  advices();
  others();
  munmap(data, 3 * used);
  return done("call_errors");
}
