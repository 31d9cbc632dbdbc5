// SPDX-License-Identifier: Apache-2.0
// Opened pieces of a reservation with closed pages between them: touching one is a SIGSEGV for the
// program's handler, with the address and SEGV_ACCERR, whether it was ever open or not, for loads
// and stores; a system call gets EFAULT.
#include <setjmp.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf after_fault;
static char* fault_address;
static int fault_code;
static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  fault_address = (char*)info->si_addr;
  fault_code = info->si_code;
  siglongjmp(after_fault, 1);
}

static int refused(char* at, int store) {
  fault_address = NULL;
  if (sigsetjmp(after_fault, 1) == 0) {
    if (store) {
      *(volatile char*)at = 1;
    } else {
      (void)*(volatile char*)at;
    }
    return 0;
  }
  return fault_address == at && fault_code == SEGV_ACCERR;
}

int main(void) {
  enum { kPieces = 100 };
  const size_t piece = 40 * kPage;
  onSignal(SIGSEGV, onFault, 0);
  crowd();
  char* heap = (char*)mmap(NULL, kPieces * (piece + kPage) + kPage, PROT_NONE,
                           kPlain | MAP_NORESERVE, -1, 0);
  EXPECT(heap != MAP_FAILED);
  for (size_t i = 0; i < kPieces; ++i) {
    char* at = heap + i * (piece + kPage) + kPage;
    EXPECT(mprotect(at, piece, kRw) == 0);
    fill(at, piece, i);
  }
  crowd();
  int hit = 0;
  for (size_t i = 0; i < kPieces; ++i) {
    char* at = heap + i * (piece + kPage) + kPage;
    EXPECT(wrongWords(at, piece, i) == 0);
    hit += refused(at - 8, (int)i % 2) + refused(at + piece, 1);
  }
  printf("%d closed pages hit\n", hit);
  // Given up, and closed with their bytes.
  EXPECT(mmap(heap, 10 * piece, PROT_NONE, kPlain | MAP_FIXED, -1, 0) == heap);
  EXPECT(refused(heap + 2 * piece, 0) && refused(heap + 3 * piece + 11, 1));
  char* shut = heap + 50 * (piece + kPage) + kPage;
  EXPECT(mprotect(shut, piece, PROT_NONE) == 0);
  EXPECT(refused(shut + 5 * kPage, 0) && refused(shut + 5 * kPage, 1));
  errno = 0;
  EXPECT(write(fileOf(kPage, 1), heap, kPage) == -1 && errno == EFAULT);
  EXPECT(mprotect(shut, piece, kRw) == 0 && wrongWords(shut, piece, 50) == 0);
  return done("reserve_guards");
}
