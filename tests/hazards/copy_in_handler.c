// SPDX-License-Identifier: Apache-2.0
// A signal handler copies the process, as crash reporters do, whatever it interrupted: malloc,
// calls that map memory, a touch of what is far. The child may only read; and what it reads must be
// right, or refused (docs/limits.md).
#include <sys/time.h>

#include "copy_ways.h"

enum { kCopies = 150 };
static volatile sig_atomic_t made, odd;

/// Once more in a while. Not at intervals: where a copy takes longer than one, the handler would be
/// all that ever runs.
static void soon(void) {
  const struct itimerval once = {{0, 0}, {0, 3000}};
  setitimer(ITIMER_REAL, &once, NULL);
}

/// 0: right, and so is a child that a touch ended.
static void copyAndLook(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  const int saved_errno = errno;
  const pid_t child = made % 2 == 0 ? _Fork() : (pid_t)syscall(SYS_fork);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    const size_t at = (size_t)made * 13 * kPage % kCopySize;
    _exit(wrongFrom(copied + at, kPage, 1, at / 8) != 0);
  }
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int refused = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
  odd += child < 0 || (status != 0 && !refused);
  ++made;
  soon();
  errno = saved_errno;
}

int main(void) {
  copied = farData(kCopySize, 1);
  onSignal(SIGALRM, copyAndLook, SA_RESTART);
  soon();
  for (uint64_t round = 0; made < kCopies; ++round) {
    char* mapped = mapPlain(MIB);
    fill(mapped, MIB, round);
    for (size_t size = 100; size < 200000; size = size * 3 / 2) free(malloc(size));
    EXPECT(wrongWords(mapped, MIB, round) == 0);
    EXPECT(munmap(mapped, MIB) == 0);
  }
  const struct itimerval never = {{0, 0}, {0, 0}};
  EXPECT(setitimer(ITIMER_REAL, &never, NULL) == 0);
  EXPECT(odd == 0);
  EXPECT(wrongWords(copied, kCopySize, 1) == 0);
  return done("copy_in_handler");
}
