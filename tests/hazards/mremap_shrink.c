// SPDX-License-Identifier: Apache-2.0
// mremap that shrinks: in place, and the tail is gone; then grown again, with zeros behind.
#include <setjmp.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf after_fault;
static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  siglongjmp(after_fault, 1);
}

static int readFaults(const volatile char* at) {
  if (sigsetjmp(after_fault, 1) != 0) return 1;
  (void)*at;
  return 0;
}

int main(void) {
  onSignal(SIGSEGV, onFault, 0);
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  for (size_t now = size; now > 4 * MIB; now -= 4 * MIB) {
    EXPECT(mremap(data, now, now - 4 * MIB, 0) == data);
    EXPECT(readFaults(data + now - 4 * MIB) && readFaults(data + now - kPage));
    crowd();
  }
  EXPECT(wrongWords(data, 4 * MIB, 1) == 0);
  data = (char*)mremap(data, 4 * MIB, size, MREMAP_MAYMOVE);
  EXPECT(data != MAP_FAILED && wrongWords(data, 4 * MIB, 1) == 0);
  EXPECT(allBytesAre(data + 4 * MIB, 0, size - 4 * MIB));
  tell("data", data, size);
  return done("mremap_shrink");
}
