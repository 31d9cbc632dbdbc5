// SPDX-License-Identifier: Apache-2.0
// _Fork() while threads start, none of which allocates, only maps: no lock of a heap can be held,
// so each child may fork in its turn.
#include <pthread.h>

#include "hazard.h"

enum { kRounds = 60, kThreads = 4, kSize = 64 << 10 };

static void* mapAndLeave(void* unused) {
  char* own = mapPlain(kSize);
  fill(own, kSize, 5);
  EXPECT(wrongWords(own, kSize, 5) == 0);
  EXPECT(munmap(own, kSize) == 0);
  return unused;
}

static int inChild(const char* data, size_t size, uint64_t seed) {
  if (wrongWords(data, size, seed) != 0) return 10;
  const pid_t child = fork();
  if (child == 0) _exit(wrongWords(data, size, seed) == 0 ? 1 : 2);
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 11;
  return WEXITSTATUS(status) == 1 ? 3 : 12;
}

int main(void) {
  const size_t size = 4 * MIB;
  char* data = farData(size, 1);
  for (uint64_t round = 0; round < kRounds; ++round) {
    pthread_t threads[kThreads];
    for (int i = 0; i < kThreads; ++i) {
      EXPECT(pthread_create(&threads[i], NULL, mapAndLeave, NULL) == 0);
    }
    fflush(stdout);
    const pid_t child = _Fork();
    if (child == 0) _exit(inChild(data, size, 1));
    EXPECT(child > 0);
    ended("copy_thread_starts", child);
    for (int i = 0; i < kThreads; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  }
  tell("data", data, size);
  return done("copy_thread_starts");
}
