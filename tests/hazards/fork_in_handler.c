// SPDX-License-Identifier: Apache-2.0
// A signal handler copies the process while the program is in the midst of copying it itself: what
// was held back meanwhile arrives as soon as it may, when locks must have been given back. As
// glibc's tst-mallocfork2 and tst-mallocfork3 do.
#include <sys/time.h>

#include "copy_ways.h"

static volatile sig_atomic_t handled, odd;
static pid_t (*copyProcess)(void);

/// Within so many microseconds, which a copy takes.
static void soon(void) {
  static unsigned microseconds = 1;
  microseconds = microseconds * 75 % 65537;
  const struct itimerval once = {{0, 0}, {0, 1 + microseconds % 400}};
  setitimer(ITIMER_REAL, &once, NULL);
}

static void copyOnce(void) {
  const pid_t child = copyProcess();
  if (child == 0) _exit(0);
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  odd += child < 0 || status != 0;
}

static void handle(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  const int saved_errno = errno;
  copyOnce();
  ++handled;
  errno = saved_errno;
}

static void copyOften(pid_t (*way)(void)) {
  copyProcess = way;
  handled = 0;
  for (int left = rounds(100, 400); left > 0; --left) {
    soon();
    copyOnce();
  }
  const struct itimerval never = {{0, 0}, {0, 0}};
  EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
  EXPECT(handled > 0 && odd == 0);
}

int main(void) {
  copied = farData(kCopySize, 1);
  onSignal(SIGALRM, handle, SA_RESTART);
  copyOften(_Fork);
  copyOften(fork);
  EXPECT(wrongWords(copied, kCopySize, 1) == 0);
  return done("fork_in_handler");
}
