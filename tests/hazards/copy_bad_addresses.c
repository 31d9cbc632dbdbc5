// SPDX-License-Identifier: Apache-2.0
// Copies of the process whose caller names places where nothing can be written: refused, or not, as
// the kernel does, and before there is a child.
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

static const void* const kNowhere = (void*)8;

static void copy(const char* what, uint64_t flags, const void* parent, const void* child,
                 const void* pidfd) {
  struct clone_args args = {.flags = flags,
                            .parent_tid = (uintptr_t)parent,
                            .child_tid = (uintptr_t)child,
                            .pidfd = (uintptr_t)pidfd,
                            .exit_signal = SIGCHLD};
  const long made = syscall(SYS_clone3, &args, sizeof args);
  if (made == 0) _exit(5);
  printf("%s: %s\n", what, made < 0 ? strerrorname_np(errno) : "made");
  if (made > 0) ended(what, (pid_t)made);
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  char* closed = (char*)mmap(NULL, MIB, PROT_READ, kPlain, -1, 0);
  copy("bad pidfd", CLONE_PIDFD, NULL, NULL, kNowhere);
  copy("no pidfd", CLONE_PIDFD, NULL, NULL, NULL);
  copy("read-only pidfd", CLONE_PIDFD, NULL, NULL, closed);
  copy("bad parent", CLONE_PARENT_SETTID, kNowhere, NULL, NULL);
  copy("bad child", CLONE_CHILD_SETTID, NULL, kNowhere, NULL);
  copy("bad child that ends", CLONE_CHILD_CLEARTID, NULL, kNowhere, NULL);
  copy("far", CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, data, data + MIB,
       data + 2 * MIB);
  EXPECT(*(int*)(data + MIB) != 0 && *(int*)(data + 2 * MIB) > 2);
  errno = 0;
  EXPECT(syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, kNowhere, NULL, NULL) == -1);
  printf("clone: %s\n", strerrorname_np(errno));
  errno = 0;
  EXPECT(waitpid(-1, NULL, 0) == -1);
  printf("children left: %s\n", strerrorname_np(errno));
  return done("copy_bad_addresses");
}
