// SPDX-License-Identifier: Apache-2.0
// syscall(): six arguments, results and errno, in the program and in a signal handler.
#include <sched.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

static volatile sig_atomic_t handled;

static void onAlarm(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  handled = syscall(SYS_getpid) == getpid() && syscall(SYS_close, -1) == -1 && errno == EBADF;
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  const int file = fileOf(MIB, 3);
  // The sixth is the offset.
  char* view = (char*)syscall(SYS_mmap, NULL, MIB / 2, PROT_READ, MAP_PRIVATE, file, MIB / 2);
  EXPECT(wrongFrom(view, MIB / 2, 3, MIB / 16) == 0);
  EXPECT(syscall(SYS_munmap, view, MIB / 2) == 0);
  errno = 77;
  EXPECT(syscall(SYS_getppid) == getppid() && errno == 77);
  EXPECT(syscall(SYS_close, 12345) == -1 && errno == EBADF);
  EXPECT(syscall(100000) == -1 && errno == ENOSYS);
  EXPECT(syscall(SYS_clone, CLONE_THREAD, NULL, NULL, NULL, NULL) == -1 && errno == EINVAL);
  EXPECT(syscall(SYS_pread64, file, data, MIB, 0) == (long)MIB && wrongWords(data, MIB, 3) == 0);
  onSignal(SIGALRM, onAlarm, 0);
  EXPECT(raise(SIGALRM) == 0 && handled);
  EXPECT(wrongFrom(data + MIB, 3 * MIB, 1, MIB / 8) == 0);
  return done("syscall_exact");
}
