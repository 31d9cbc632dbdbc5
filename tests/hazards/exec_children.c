// SPDX-License-Identifier: Apache-2.0
// Many preloaded children at once, each with far data of its own, and one that is killed.
#include <spawn.h>

#include "tests/hazards/hazard.h"

extern char** environ;
enum { kChildren = 4, kReady = 100 };  // where the one that will be killed says that it waits

int main(int argc, char** argv) {
  if (argc == 2) {
    const uint64_t seed = strtoull(argv[1], NULL, 10);
    char* data = farData(4 * MIB, seed);
    if (seed == 2) {
      EXPECT(write(kReady, "", 1) == 1);
      pause();
    }
    return wrongWords(data, 4 * MIB, seed) == 0 && !failures() ? (int)seed + 10 : 3;
  }
  char* data = farData(4 * MIB, 1);
  pid_t made[kChildren];
  int ends[2];
  EXPECT(pipe2(ends, O_CLOEXEC) == 0);
  EXPECT(dup2(ends[1], kReady) == kReady);
  for (int i = 0; i < kChildren; ++i) {
    char seed[8];
    snprintf(seed, sizeof seed, "%d", i);
    char* arguments[] = {argv[0], seed, NULL};
    EXPECT(posix_spawn(&made[i], "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
  }
  char byte;
  EXPECT(read(ends[0], &byte, 1) == 1);
  EXPECT(kill(made[2], SIGKILL) == 0);
  for (int i = 0; i < kChildren; ++i) ended("child", made[i]);
  crowd();
  tell("data", data, 4 * MIB);
  return done("exec_children");
}
