// SPDX-License-Identifier: Apache-2.0
// process_madvise() with a descriptor of the process itself does what madvise() does, on far memory
// too, and refuses what the kernel refuses.
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/hazards/hazard.h"

static void say(const char* what, ssize_t got) {
  printf("%s: %zd %s\n", what, got, got < 0 ? strerrorname_np(errno) : "");
}

int main(void) {
  const size_t size = 4 * MIB;
  const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  EXPECT(self >= 0);
  char* data = farData(size, 1);
  struct iovec two[2] = {{data, MIB}, {data + 2 * MIB, MIB}};
  say("cold", process_madvise(self, two, 2, MADV_COLD, 0));
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  // Linux 6.13 allows it; older ones do not, and change nothing.
  const ssize_t emptied = process_madvise(self, two, 2, MADV_DONTNEED, 0);
  say("discard", emptied);
  crowd();
  for (int i = 0; i < 4; ++i) {
    if (emptied > 0 && i % 2 == 0)
      EXPECT(allBytesAre(data + i * MIB, 0, MIB));
    else
      EXPECT(wrongFrom(data + i * MIB, MIB, 1, i * MIB / 8) == 0);
  }
  struct iovec holed[2] = {{data, MIB}, {data + 2 * MIB, MIB}};
  EXPECT(munmap(data + 2 * MIB, MIB) == 0);
  say("with a hole", process_madvise(self, holed, 2, MADV_DONTNEED, 0));
  say("hole alone", process_madvise(self, holed + 1, 1, MADV_DONTNEED, 0));
  say("flags", process_madvise(self, holed, 1, MADV_COLD, 1));
  say("advice", process_madvise(self, holed, 1, 12345, 0));
  say("none", process_madvise(self, holed, 0, MADV_COLD, 0));
  say("too many", process_madvise(self, holed, 1025, MADV_COLD, 0));
  say("bad ranges", process_madvise(self, (struct iovec*)8, 1, MADV_COLD, 0));
  say("bad descriptor", process_madvise(-1, holed, 1, MADV_COLD, 0));
  const int child_ends = 0;
  const pid_t child = fork();
  if (child == 0) _exit(child_ends);
  ended("child", child);
  return done("process_madvise_self");
}
