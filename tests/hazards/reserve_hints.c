// SPDX-License-Identifier: Apache-2.0
// Hints: memory is had wherever it comes; who insists gets the address that the kernel would have
// given. A reservation below 4 GiB, as a JVM wants it for short pointers, is where it was asked
// for.
#include "tests/hazards/hazard.h"

static char* at(uintptr_t hint, size_t size, int protection) {
  return (char*)mmap((void*)hint, size, protection, kPlain | MAP_NORESERVE, -1, 0);
}

/// As programs do that need the address: they give back what lies elsewhere and ask anew.
static char* insist(uintptr_t hint, size_t size) {
  for (int i = 0; i < 8; ++i, hint += (uintptr_t)1 << 32) {
    char* got = at(hint, size, PROT_NONE);
    if (got == (char*)hint) return got;
    EXPECT(got != MAP_FAILED && munmap(got, size) == 0);
  }
  return NULL;
}

static void use(const char* what, char* heap, size_t size) {
  EXPECT(heap != NULL && heap != MAP_FAILED);
  EXPECT(mprotect(heap, size, kRw) == 0);
  fill(heap, size, 1);
  crowd();
  tell(what, heap, size);
}

int main(void) {
  const size_t size = 8 * MIB;
  crowd();
  char* low = at(0xc0000000, 1 << 30, PROT_NONE);
  printf("low: %d\n", low == (char*)0xc0000000);
  use("low", low, size);
  char* again = at(0xc0000000, 64 * MIB, PROT_NONE);
  EXPECT(again != low);
  use("again", again, size);
  EXPECT(munmap(again, 64 * MIB) == 0 && munmap(low, 1 << 30) == 0);
  EXPECT(at(0xc0000000, size, kRw) == (char*)0xc0000000);
  use("plain", (char*)0xc0000000, size);
  use("aligned", at(0x2fc4000000, size, kRw), size);
  use("insisted", insist(0x500000000000, size), size);
  EXPECT(at(0x510000000000, size, PROT_NONE) == (char*)0x510000000000);
  errno = 0;
  EXPECT(mmap((void*)0xc0000000, size, PROT_NONE, kPlain | MAP_FIXED_NOREPLACE, -1, 0) ==
             MAP_FAILED &&
         errno == EEXIST);
  return done("reserve_hints");
}
