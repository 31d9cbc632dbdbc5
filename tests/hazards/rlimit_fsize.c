// SPDX-License-Identifier: Apache-2.0
// RLIMIT_FSIZE that the program sets for itself, as judges and mail servers do, down to a kilobyte:
// its forks go on, in generations, with what they had in far memory. SIGXFSZ is of the program's
// own files alone: it comes for those, and for nothing else.
#include <sys/resource.h>

#include "tests/hazards/hazard.h"

static volatile sig_atomic_t signals;
static void count(int number, siginfo_t* info, void* context) {
  (void)number, (void)info, (void)context;
  ++signals;
}

static int generation(char* data, size_t size, int depth) {
  EXPECT(wrongWords(data, size, 1) == 0);
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0 && signals == 0);
  if (depth == 0) return failures();
  const pid_t child = fork();
  if (child == 0) _exit(generation(data, size, depth - 1));
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  return failures();
}

int main(void) {
  const size_t size = 16 * MIB;
  char* data = farData(size, 1);
  const int fd = memfd_create("own", 0);
  const rlim_t limits[] = {MIB, 1024, 0};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; ++i) {
    fflush(stdout);
    const pid_t child = fork();
    if (child != 0) {
      ended("limited", child);
      continue;
    }
    struct rlimit limit = {limits[i], limits[i]};
    EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const pid_t unaware = fork();  // SIGXFSZ would end it
    if (unaware == 0) _exit(generation(data, size, rounds(1, 2)));
    int status = -1;
    EXPECT(waitpid(unaware, &status, 0) == unaware && status == 0);
    onSignal(SIGXFSZ, count, 0);
    EXPECT(generation(data, size, rounds(1, 2)) == 0);
    EXPECT(ftruncate(fd, 2 * MIB) != 0 && errno == EFBIG && signals == 1);
    _exit(failures());
  }
  tell("data", data, size);
  return done("rlimit_fsize");
}
