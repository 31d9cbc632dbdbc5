// SPDX-License-Identifier: Apache-2.0
// What the hazards share: data that can be checked and told in a line, and a way to fill the local
// budget so that what comes next has to move. A hazard prints digests of what it saw, never
// addresses or times, and runs plain as well as under any tier. For C and C++; one thread unless
// said.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/check.h"

enum { kPage = 4096, kPlain = MAP_PRIVATE | MAP_ANONYMOUS, kRw = PROT_READ | PROT_WRITE };
#define MIB ((size_t)1 << 20)
// More than the budget that the runner gives.
#define BALLAST (14 * MIB)

/// How often to try what may go wrong: `few` times in a check, `many` in `make soak`.
static inline int rounds(int few, int many) { return getenv("HAZARD_LONG") != NULL ? many : few; }

/// The word that belongs at `index` of data with this seed (splitmix64).
static inline uint64_t wordAt(uint64_t seed, size_t index) {
  uint64_t z = seed * 0x100000001b3u + (uint64_t)index * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline void fill(void* memory, size_t size, uint64_t seed) {
  uint64_t* words = (uint64_t*)memory;
  for (size_t i = 0; i < size / 8; ++i) words[i] = wordAt(seed, i);
}

/// How many words are not those of fill() with that seed, beginning with its word `from`.
static inline size_t wrongFrom(const void* memory, size_t size, uint64_t seed, size_t from) {
  const uint64_t* words = (const uint64_t*)memory;
  size_t wrong = 0;
  for (size_t i = 0; i < size / 8; ++i) wrong += words[i] != wordAt(seed, from + i);
  return wrong;
}
static inline size_t wrongWords(const void* memory, size_t size, uint64_t seed) {
  return wrongFrom(memory, size, seed, 0);
}

/// FNV-1a over 64-bit words.
static inline uint64_t digest(const void* memory, size_t size) {
  const uint64_t* words = (const uint64_t*)memory;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size / 8; ++i) hash = (hash ^ words[i]) * 0x100000001b3u;
  return hash;
}

static inline void tell(const char* what, const void* memory, size_t size) {
  printf("%s %zu %016llx\n", what, size, (unsigned long long)digest(memory, size));
}

static inline char* mapPlain(size_t size) {
  void* range = mmap(NULL, size, kRw, kPlain, -1, 0);
  if (range == MAP_FAILED) {
    printf("cannot map %zu bytes: errno %d\n", size, errno);
    exit(99);
  }
  return (char*)range;
}

/// Fills the budget with other data, so that everything else is pushed towards far memory. Call it
/// before the data are made (they are then placed far, where a tier allows that) and again
/// whenever they should leave.
static inline void crowd(void) {
  static char* ballast;
  static uint64_t round;
  if (ballast == NULL)
    ballast = mapPlain(BALLAST);
  else
    EXPECT(wrongWords(ballast, BALLAST, round) == 0);
  fill(ballast, BALLAST, ++round);
}

/// Filled data that have been pushed out.
static inline char* farData(size_t size, uint64_t seed) {
  crowd();
  char* data = mapPlain(size);
  fill(data, size, seed);
  crowd();
  return data;
}
/// The same from malloc.
static inline char* farBlock(size_t size, uint64_t seed) {
  crowd();
  char* data = (char*)malloc(size);
  fill(data, size, seed);
  crowd();
  return data;
}

/// A file without a name, of data with this seed.
static inline int fileOf(size_t size, uint64_t seed) {
  FILE* file = tmpfile();
  char* data = mapPlain(size);
  fill(data, size, seed);
  EXPECT(file != NULL && write(fileno(file), data, size) == (ssize_t)size);
  munmap(data, size);
  return fileno(file);
}

static inline void onSignal(int number, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  EXPECT(sigaction(number, &action, NULL) == 0);
}

/// Waits for a child and says how it ended.
static inline int ended(const char* who, pid_t pid) {
  int status = -1;
  EXPECT(waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status))
    printf("%s: signal %d\n", who, WTERMSIG(status));
  else
    printf("%s: status %d\n", who, WEXITSTATUS(status));
  return status;
}

static inline int done(const char* hazard) {
  printf("%s %s\n", hazard, failures() ? "FAILED" : "held");
  return failures();
}
