// SPDX-License-Identifier: Apache-2.0
// Faults of the program's own making reach its handler with the right address and code: null,
// memory that is not there, freed mappings, read-only pages, and system calls on them say EFAULT.
#include <setjmp.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf out;
static siginfo_t seen;
static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  seen = *info;
  siglongjmp(out, 1);
}

static void provoke(const char* what, volatile char* at, int write) {
  memset(&seen, 0, sizeof seen);
  if (sigsetjmp(out, 1) == 0) {
    if (write)
      *at = 1;
    else
      (void)*at;
    printf("%s: no fault\n", what);
    return;
  }
  printf("%s: signal %d code %d address %s\n", what, seen.si_signo, seen.si_code,
         seen.si_addr == at ? "right" : "wrong");
}

int main(void) {
  onSignal(SIGSEGV, onFault, SA_NODEFER);
  onSignal(SIGBUS, onFault, SA_NODEFER);
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  provoke("null", NULL, 1);
  provoke("near null", (char*)(uintptr_t)16, 0);
  char* gone = farData(size, 2);
  EXPECT(munmap(gone, size) == 0);
  printf("EFAULT: %d\n", write(fileOf(kPage, 1), gone, kPage) == -1 && errno == EFAULT);
  EXPECT(mprotect(data, size, PROT_READ) == 0);
  for (size_t at = 0; at < size; at += MIB) provoke("read-only", data + at + 123, 1);
  crowd();
  provoke("far read-only", data + MIB + 5, 1);
  EXPECT(mprotect(data, size, PROT_NONE) == 0);
  provoke("no access", data + 77, 0);
  EXPECT(mprotect(data, size, kRw) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  const int file = memfd_create("short", MFD_CLOEXEC);
  EXPECT(ftruncate(file, kPage) == 0);
  char* mapped = (char*)mmap(NULL, 4 * kPage, kRw, MAP_SHARED, file, 0);
  provoke("end of file", mapped + 2 * kPage + 9, 1);
  EXPECT(mmap(data + MIB, 4 * kPage, kRw, MAP_SHARED | MAP_FIXED, file, 0) == data + MIB);
  provoke("end of file within data", data + MIB + 3 * kPage, 0);
  tell("data", data, MIB);
  return done("segv_null");
}
