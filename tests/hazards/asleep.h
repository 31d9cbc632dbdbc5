// SPDX-License-Identifier: Apache-2.0
// For hazards in which a thread sleeps on a word whose page is pushed out meanwhile.
#pragma once

#include <sys/syscall.h>
#include <time.h>

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

/// True if the page is one of a file, as those of a direct tier are (pagemap's bit 61).
static inline int isOfFile(const void* page) {
  uint64_t entry = 0;
  const int fd = open("/proc/self/pagemap", O_RDONLY);
  EXPECT(fd >= 0 && pread(fd, &entry, 8, (off_t)((uintptr_t)page / kPage * 8)) == 8);
  close(fd);
  return (int)(entry >> 61 & 1);
}

static inline double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/// Makes the `count` pages at `stride` bytes from one another hot, then cold, each until all of
/// them have changed between local memory and a direct tier, or could have. Only reads.
static inline void stir(char* first, size_t count, size_t stride) {
  const double kHotSeconds = 1, kColdSeconds = 0.5;
  for (int hot = 1; hot >= 0; --hot) {
    const double end = now() + (hot ? kHotSeconds : kColdSeconds);
    for (size_t there = count; there > 0 && now() < end;) {
      there = 0;
      for (size_t i = 0; i < count; ++i) {
        const volatile char* page = first + i * stride;
        for (int touch = 0; hot && touch < 200; ++touch) (void)*page;
        there += isOfFile(first + i * stride) == hot;
      }
      if (!hot) crowd();
    }
  }
}

/// The thread's own number, for others to wait for.
static inline pid_t threadNumber(void) { return (pid_t)syscall(SYS_gettid); }
