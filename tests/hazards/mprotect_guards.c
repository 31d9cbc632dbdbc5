// SPDX-License-Identifier: Apache-2.0
// Guard pages: many small regions in one mapping, each with a page without rights before and after.
// Running into one is a SIGSEGV with the right address.
#include <setjmp.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf after_fault;
static char* fault_address;
static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)context;
  fault_address = (char*)info->si_addr;
  siglongjmp(after_fault, 1);
}

int main(void) {
  enum { kRegions = 256, kRegion = 16 * kPage };
  onSignal(SIGSEGV, onFault, 0);
  const size_t size = (size_t)kRegions * kRegion;
  char* data = farData(size, 1);
  for (int i = 0; i < kRegions; ++i) EXPECT(mprotect(data + i * kRegion, kPage, PROT_NONE) == 0);
  crowd();
  int hit = 0;
  for (int i = 0; i < kRegions - 1; ++i) {
    char* guard = data + (i + 1) * kRegion;
    EXPECT(wrongFrom(data + i * kRegion + kPage, kRegion - kPage, 1,
                     (size_t)(i * kRegion + kPage) / 8) == 0);
    if (sigsetjmp(after_fault, 1) == 0) {
      for (volatile char* at = guard - 100;; ++at) *at = 5;
    }
    hit += fault_address == guard;
  }
  printf("%d guards hit\n", hit);
  EXPECT(mprotect(data, size, kRw) == 0);
  tell("data", data, size);
  return done("mprotect_guards");
}
