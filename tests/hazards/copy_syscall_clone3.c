// SPDX-License-Identifier: Apache-2.0
// clone3(2) by syscall(), its arguments in far memory; and what it refuses.
#include <linux/sched.h>
#include <poll.h>

#include "copy_ways.h"

static pid_t copy(void) {
  static struct clone_args* args;
  if (args == NULL) args = (struct clone_args*)farData(MIB, 4);
  memset(args, 0, sizeof *args);
  int* const pidfd = (int*)(args + 1);
  args->flags = CLONE_PIDFD;
  args->pidfd = (uintptr_t)pidfd;
  args->exit_signal = SIGCHLD;
  crowd();
  const long child = syscall(SYS_clone3, args, sizeof *args);
  if (child > 0) {
    struct pollfd end = {*pidfd, POLLIN, 0};
    EXPECT(poll(&end, 1, 60000) == 1);
    close(*pidfd);
  }
  return (pid_t)child;
}

static void refused(const char* what, const void* args, size_t size) {
  errno = 0;
  const long made = syscall(SYS_clone3, args, size);
  printf("%s: %ld, errno %d\n", what, made, errno);
}

int main(void) {
  refused("nothing", NULL, 0);
  refused("no address", NULL, sizeof(struct clone_args));
  struct clone_args args;
  memset(&args, 0, sizeof args);
  refused("short", &args, 8);
  args.stack_size = 4096;
  refused("a size and no stack", &args, sizeof args);
  args.stack_size = 0;
  args.exit_signal = 1000;
  refused("no such signal", &args, sizeof args);
  args.exit_signal = 0;
  args.flags = CLONE_THREAD;
  refused("a thread without memory", &args, sizeof args);
  return copyAgainAndAgain("copy_syscall_clone3", copy);
}
