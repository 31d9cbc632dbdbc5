// SPDX-License-Identifier: Apache-2.0
// longjmp out of handlers again and again, also out of one that a fault in far memory raised.
#include <setjmp.h>
#include <sys/time.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf out;
static volatile sig_atomic_t armed, jumps;
static void jump(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  if (!armed) return;
  ++jumps;
  siglongjmp(out, 1);
}

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  onSignal(SIGALRM, jump, 0);
  onSignal(SIGSEGV, jump, 0);
  struct itimerval every = {{0, 500}, {0, 500}};
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  volatile size_t wrong = 0;
  while (jumps < 100) {
    if (sigsetjmp(out, 1) == 0) {
      armed = 1;
      for (size_t at = 0;; at = (at + 5 * kPage) % size) {
        if (*(volatile uint64_t*)(data + at) != wordAt(1, at / 8)) ++wrong;
      }
    }
    armed = 0;
  }
  memset(&every, 0, sizeof every);
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  EXPECT(mprotect(data, size, PROT_NONE) == 0);
  for (volatile int i = 0; i < 100; ++i) {
    if (sigsetjmp(out, 1) == 0) {
      armed = 1;
      data[(size_t)i * kPage] = 1;
    }
  }
  printf("%zu wrong, %d jumps at least\n", wrong, jumps >= 200 ? 200 : jumps);
  EXPECT(mprotect(data, size, kRw) == 0);
  tell("data", data, size);
  return done("longjmp_handler");
}
