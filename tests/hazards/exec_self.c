// SPDX-License-Identifier: Apache-2.0
// A program that replaces itself several times, each time with far data and several threads, under
// the same process id; arguments and environment are large.
#include <pthread.h>

#include "tests/hazards/hazard.h"

extern char** environ;

static void* sweep(void* data) {
  for (uint64_t round = 0;; ++round) fill(data, MIB, round);
  return NULL;
}

int main(int argc, char** argv) {
  const int left = argc > 1 ? atoi(argv[1]) : 4;
  char* data = farData(4 * MIB, (uint64_t)left);
  EXPECT(wrongWords(data, 4 * MIB, (uint64_t)left) == 0);
  tell("data", data, 4 * MIB);
  if (argc > 2)
    printf("argument of %zu, environment of %zu\n", strlen(argv[2]), strlen(getenv("WIDE")));
  if (left == 0) return done("exec_self");
  fflush(stdout);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, sweep, mapPlain(MIB)) == 0);
  char* wide = farBlock(100000, 1);
  memset(wide, 'w', 100000);
  wide[99999] = '\0';
  setenv("WIDE", wide, 1);
  char number[8];
  snprintf(number, sizeof number, "%d", left - 1);
  char* arguments[] = {argv[0], number, wide, NULL};
  execve("/proc/self/exe", arguments, environ);
  return 9;
}
