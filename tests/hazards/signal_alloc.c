// SPDX-License-Identifier: Apache-2.0
// Handlers that allocate and use far memory, where the program itself does neither: as it computes,
// and as it waits in a system call.
#include <sys/time.h>

#include "tests/hazards/hazard.h"

static char* data;
static volatile sig_atomic_t ticks, wrong;

static void onTick(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  const size_t page = (size_t)ticks * 37 % (8 * MIB / kPage);
  char* block = (char*)malloc(100000);
  memcpy(block, data + page * kPage, kPage);
  wrong += wrongFrom(block, kPage, 1, page * kPage / 8) != 0;
  free(block);
  ++ticks;
}

int main(void) {
  data = farData(8 * MIB, 1);
  onSignal(SIGALRM, onTick, 0);
  struct itimerval every = {{0, 1000}, {0, 1000}};
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  volatile uint64_t work = 0;
  while (ticks < 50) work = work * 3 + 1;
  int ends[2];
  EXPECT(pipe(ends) == 0);
  char byte;
  while (ticks < 100) EXPECT(read(ends[0], &byte, 1) == -1 && errno == EINTR);
  memset(&every, 0, sizeof every);
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  printf("%d wrong\n", wrong);
  crowd();
  tell("data", data, 8 * MIB);
  return done("signal_alloc");
}
