// SPDX-License-Identifier: Apache-2.0
// abort() in a program with far data and threads: SIGABRT, and its handler is run first.
#include "tests/hazards/hazard.h"

static char* data;
static void onAbort(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  tell("in the handler", data, 4 * MIB);
  fflush(stdout);
}

int main(void) {
  data = farBlock(4 * MIB, 1);
  onSignal(SIGABRT, onAbort, 0);
  abort();
}
