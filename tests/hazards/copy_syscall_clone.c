// SPDX-License-Identifier: Apache-2.0
// clone(2) by syscall(), with thread ids told to memory that is far, as sandboxes start.
#include "copy_ways.h"

static pid_t copy(void) {
  static pid_t* ids;
  if (ids == NULL) ids = (pid_t*)farData(MIB, 4);
  crowd();
  pid_t* const told = &ids[MIB / 8];
  const long child =
      syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
              NULL, told, told + 1, NULL);
  if (child == 0) {
    EXPECT(told[1] == getpid());
    told[1] = (pid_t)(wordAt(4, MIB / 16) >> 32);
  } else {
    EXPECT(told[0] == (pid_t)child);
  }
  told[0] = (pid_t)wordAt(4, MIB / 16);
  if (wrongWords(ids, MIB, 4) != 0) _exit(20);
  return (pid_t)child;
}

int main(void) { return copyAgainAndAgain("copy_syscall_clone", copy); }
