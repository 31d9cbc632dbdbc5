// SPDX-License-Identifier: Apache-2.0
// fork(2) by syscall().
#include "copy_ways.h"

static pid_t copy(void) { return (pid_t)syscall(SYS_fork); }

int main(void) { return copyAgainAndAgain("copy_syscall_fork", copy); }
