// SPDX-License-Identifier: Apache-2.0
// Worker processes that live side by side and fork again, each with far data of its own on top of
// what it inherited; threads of the parent go on allocating.
#include <pthread.h>

#include "tests/hazards/hazard.h"

static const size_t kSize = 4 * MIB;
static volatile int stop;

static void* allocateAway(void* unused) {
  while (!stop) free(malloc(300000));
  return unused;
}

static int work(char* data, uint64_t number, int deeper) {
  if (wrongWords(data, kSize, 1) != 0) return 3;
  char* mine = (char*)malloc(kSize);
  fill(mine, kSize, number);
  if (deeper) {
    const pid_t child = fork();
    if (child == 0) _exit(work(data, number + 100, 0));
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 4;
  }
  crowd();
  return wrongWords(mine, kSize, number) == 0 && wrongWords(data, kSize, 1) == 0 ? 0 : 5;
}

int main(void) {
  char* data = farData(kSize, 1);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, allocateAway, NULL) == 0);
  pid_t workers[4];
  fflush(stdout);
  for (uint64_t i = 0; i < 4; ++i) {
    workers[i] = fork();
    if (workers[i] == 0) _exit(work(data, i, 1));
  }
  for (int i = 0; i < 4; ++i) ended("worker", workers[i]);
  stop = 1;
  EXPECT(pthread_join(thread, NULL) == 0);
  crowd();
  tell("data", data, kSize);
  return done("fork_workers");
}
