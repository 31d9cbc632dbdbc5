// SPDX-License-Identifier: Apache-2.0
// A server shuts itself up in an empty folder, where there is no /proc and no /dev, becomes another
// user, and forks its workers afterwards; these fork again. Who may not chroot does without.
#include <sys/prctl.h>

#include "tests/hazards/hazard.h"

static int worker(char* data, size_t size, int depth) {
  EXPECT(wrongWords(data, size, 1) == 0);
  fill(data, size, 10 + (uint64_t)depth);
  crowd();
  EXPECT(wrongWords(data, size, 10 + (uint64_t)depth) == 0);
  fill(data, size, 1);
  if (depth == 0) return failures();
  const pid_t child = fork();
  if (child == 0) _exit(worker(data, size, depth - 1));
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  return failures();
}

int main(void) {
  const size_t size = 24 * MIB;
  char* data = farData(size, 1);
  if (geteuid() == 0) {
    char folder[] = "emptyXXXXXX";
    EXPECT(mkdtemp(folder) != NULL && chroot(folder) == 0 && chdir("/") == 0);
    EXPECT(setgid(65534) == 0 && setuid(65534) == 0);
    // Without this /proc/self is root's still: see docs/limits.md.
    EXPECT(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
  }
  fflush(stdout);
  for (int left = rounds(1, 3); left > 0; --left) {
    const pid_t child = fork();
    if (child == 0) _exit(worker(data, size, 2));
    ended("worker", child);
  }
  EXPECT(wrongWords(data, size, 1) == 0);
  return done("chroot_fork");
}
