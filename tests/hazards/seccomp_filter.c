// SPDX-License-Identifier: Apache-2.0
// A program that forbids itself most system calls, as sandboxes do: from then on its thread may
// only read, write, map, and end. The filter holds for its thread, not for the ones that were there
// before.
#include "tests/hazards/filter.h"
#include "tests/hazards/hazard.h"

int main(void) {
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  struct sock_filter filter[] = {
      LOAD_CALL,           ALLOW(read),    ALLOW(write),      ALLOW(mmap),   ALLOW(munmap),
      ALLOW(mprotect),     ALLOW(madvise), ALLOW(brk),        ALLOW(futex),  ALLOW(exit_group),
      ALLOW(rt_sigreturn), ALLOW(fstat),   ALLOW(newfstatat), ALLOW(mremap), ALLOW(lseek),
      ALLOW(getrandom),    ALLOW(ioctl),   ALLOW(fallocate),  KILL,
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  EXPECT(wrongWords(data, size, 1) == 0);
  for (int i = 0; i < 20; ++i) {
    char* block = (char*)malloc((size_t)i * 300000 + 8);
    fill(block, (size_t)i * 300000 + 8, 3);
    crowd();
    EXPECT(wrongWords(block, (size_t)i * 300000 + 8, 3) == 0);
    free(block);
  }
  EXPECT(munmap(data, size) == 0);
  return done("seccomp_filter");
}
