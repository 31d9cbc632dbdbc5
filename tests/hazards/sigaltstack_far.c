// SPDX-License-Identifier: Apache-2.0
// An alternate signal stack in managed memory that has gone far: the kernel writes the frame there.
// Used for a stack overflow, and for handlers that recurse.
#include <setjmp.h>

#include "tests/hazards/hazard.h"

static sigjmp_buf out;
static char* stack;
static volatile int depth_seen;

static void onOverflow(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  char here;
  if (&here < stack || &here >= stack + MIB) _exit(96);
  siglongjmp(out, 1);
}

static int dive(int depth) {
  volatile char room[4096];
  room[0] = (char)depth;
  depth_seen = depth;
  return depth < 1 << 30 ? dive(depth + 1) + room[0] : 0;
}

int main(void) {
  stack = farData(MIB, 1);
  stack_t alternate = {.ss_sp = stack, .ss_size = MIB};
  EXPECT(sigaltstack(&alternate, NULL) == 0);
  onSignal(SIGSEGV, onOverflow, SA_ONSTACK);
  for (int round = 0; round < 3; ++round) {
    fill(stack, MIB, 2);
    crowd();
    if (sigsetjmp(out, 1) == 0) printf("%d\n", dive(0));
    printf("overflow %d, deep: %d\n", round, depth_seen > 1000);
  }
  return done("sigaltstack_far");
}
