// SPDX-License-Identifier: Apache-2.0
// A copy that shares its parent's table of descriptors (CLONE_FILES without CLONE_VM). It need not
// have what was far, but what it reads must be right, and nothing of its parent's may suffer.
#include <setjmp.h>

#include "copy_ways.h"

static sigjmp_buf next;
static void onFault(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  siglongjmp(next, 1);
}

static int pagesThatAreWrong(void) {
  volatile int wrong = 0;
  for (volatile size_t at = 0; at < kCopySize; at += kPage) {
    if (sigsetjmp(next, 1) != 0) continue;
    if (wrongFrom(copied + at, kPage, 1, at / 8) != 0) wrong = wrong + 1;
  }
  return wrong;
}

int main(void) {
  static char own_stack[1 << 16];
  copied = farData(kCopySize, 1);
  const int file = fileOf(MIB, 3);
  for (int round = 0; round < 3; ++round) {
    fflush(stdout);
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_FILES, NULL, NULL, NULL, NULL);
    if (child == 0) {
      const stack_t other = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
      sigaltstack(&other, NULL);
      onSignal(SIGSEGV, onFault, SA_ONSTACK);
      if (dup2(file, 200) != 200) _exit(9);
      _exit(pagesThatAreWrong() == 0 ? 3 : 4);
    }
    ended("sharing", child);
    EXPECT(lseek(200, 0, SEEK_END) == (off_t)MIB && close(200) == 0);
    crowd();
    EXPECT(wrongWords(copied, kCopySize, 1) == 0);
  }
  tell("data", copied, kCopySize);
  return done("copy_sharing_files");
}
