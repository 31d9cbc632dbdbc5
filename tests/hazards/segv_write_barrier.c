// SPDX-License-Identifier: Apache-2.0
// A garbage collector's write barrier: pages are made read-only, and the program's SIGSEGV handler
// learns from si_addr which were written, opens them and goes on.
#include "tests/hazards/hazard.h"

enum { kPages = 4096 };
static char* heap;
static unsigned char dirty[kPages];

static void barrier(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  const size_t page = (size_t)((char*)info->si_addr - heap) / kPage;
  if (page >= kPages || dirty[page] || info->si_code != SEGV_ACCERR) _exit(98);
  dirty[page] = 1;
  if (mprotect(heap + page * kPage, kPage, kRw) != 0) _exit(97);
}

int main(void) {
  const size_t size = (size_t)kPages * kPage;
  onSignal(SIGSEGV, barrier, SA_NODEFER);
  heap = farData(size, 1);
  EXPECT(mprotect(heap, size, PROT_READ) == 0);
  EXPECT(wrongWords(heap, size, 1) == 0);
  crowd();
  size_t wanted = 0;
  for (size_t page = 0; page < kPages; page += 1 + page % 7, ++wanted) {
    heap[page * kPage + page % kPage] ^= 0x55;
  }
  size_t seen = 0;
  for (size_t page = 0; page < kPages; ++page) seen += dirty[page];
  printf("%zu of %zu pages seen written\n", seen, wanted);
  EXPECT(mprotect(heap, size, kRw) == 0);
  tell("heap", heap, size);
  return done("segv_write_barrier");
}
