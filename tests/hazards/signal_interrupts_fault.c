// SPDX-License-Identifier: Apache-2.0
// Signals arrive all the time while a program walks over far memory and makes system calls on it:
// nothing is lost, and system calls are whole or say EINTR.
#include <sys/time.h>

#include "tests/hazards/hazard.h"

static volatile sig_atomic_t ticks;
static void onTick(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  ++ticks;
}

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  const int file = fileOf(size, 5);
  onSignal(SIGALRM, onTick, SA_RESTART);
  struct itimerval every = {{0, 100}, {0, 100}};
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT(wrongWords(data, size, 1 + (uint64_t)round) == 0);
    for (size_t at = 0; at < size;) {
      const ssize_t got = pread(file, data + at, size - at, (off_t)at);
      EXPECT(got > 0);
      if (got <= 0) break;
      at += (size_t)got;
    }
    EXPECT(wrongWords(data, size, 5) == 0);
    fill(data, size, 2 + (uint64_t)round);
    crowd();
  }
  memset(&every, 0, sizeof every);
  EXPECT(setitimer(ITIMER_REAL, &every, NULL) == 0);
  EXPECT(ticks > 10);
  tell("data", data, size);
  return done("signal_interrupts_fault");
}
