// SPDX-License-Identifier: Apache-2.0
// For hazards in which a thread sleeps on a word whose page is pushed out meanwhile.
#pragma once

#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

/// Returns once that thread of this process sleeps in the futex system call.
static inline void untilAsleep(pid_t thread) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
  for (;;) {
    char text[32] = "";
    const int fd = open(path, O_RDONLY);
    if (fd >= 0) {
      EXPECT(read(fd, text, sizeof text - 1) >= 0);
      close(fd);
    }
    if (strncmp(text, "202 ", 4) == 0) return;
    sched_yield();
  }
}

/// The thread's own number, for others to wait for.
static inline pid_t threadNumber(void) { return (pid_t)syscall(SYS_gettid); }
