// SPDX-License-Identifier: Apache-2.0
// For hazards of copying a process by other means than fork(), of which no handler is told: while a
// thread works on, copies are made of a process whose data are far. Each must be a snapshot, may go
// on as any child may, and what it does must not show in its parent.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "hazard.h"

enum { kCopySize = 8 << 20 };
static char* copied;
static volatile int working = 1;

/// A child of its own by fork() and a thread, with more data than there is room for.
static int goOn(void) {
  char* more = mapPlain(kCopySize);
  fill(more, kCopySize, 9);
  const pid_t child = fork();
  if (child == 0) _exit(wrongWords(more, kCopySize, 9) == 0 ? 1 : 2);
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status) == 1 && wrongWords(more, kCopySize, 9) == 0;
}

/// What a child does, the data being those of `seed`; its exit status.
static int inCopy(uint64_t seed) {
  if (wrongWords(copied, kCopySize, seed) != 0) return 10;
  fill(copied, kCopySize / 2, seed + 100);
  if (!goOn()) return 11;
  const size_t half = kCopySize / 2;
  if (wrongWords(copied, half, seed + 100) != 0) return 12;
  return wrongFrom(copied + half, half, seed, half / 8) != 0 ? 13 : 3;
}

static void* work(void* unused) {
  char* own = mapPlain(4 * MIB);
  for (uint64_t round = 0; working; ++round) {
    fill(own, 4 * MIB, round);
    EXPECT(wrongWords(own, 4 * MIB, round) == 0);
  }
  return unused;
}

/// `copy` returns as fork() does.
static inline int copyAgainAndAgain(const char* hazard, pid_t (*copy)(void)) {
  copied = farData(kCopySize, 1);
  pthread_t worker;
  EXPECT(pthread_create(&worker, NULL, work, NULL) == 0);
  for (uint64_t seed = 1; seed <= (uint64_t)rounds(2, 3); ++seed) {
    fflush(stdout);
    const pid_t child = copy();
    if (child == 0) _exit(inCopy(seed));
    EXPECT(child > 0);
    fill(copied, kCopySize, seed + 1);
    ended(hazard, child);
    crowd();
    EXPECT(wrongWords(copied, kCopySize, seed + 1) == 0);
  }
  working = 0;
  EXPECT(pthread_join(worker, NULL) == 0);
  tell("data", copied, kCopySize);
  return done(hazard);
}
