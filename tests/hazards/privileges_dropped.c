// SPDX-License-Identifier: Apache-2.0
// A server's start: chroot, chdir, setgroups, setgid and setuid (where it is allowed to), then work
// on far data, as a user who could not have a userfaultfd of its own.
#include <grp.h>
#include <sys/prctl.h>

#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  unsetenv("TMPDIR");
  printf("chroot %d\n", chroot("/proc/self/fdinfo"));
  printf("chdir %d\n", chdir("/"));
  printf("groups %d gid %d uid %d\n", setgroups(0, NULL), setgid(65534), setuid(65534));
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  char* more = farBlock(size, 2);
  EXPECT(wrongWords(more, size, 2) == 0);
  free(more);
  tell("data", data, size);
  return done("privileges_dropped");
}
