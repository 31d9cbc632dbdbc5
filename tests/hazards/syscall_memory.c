// SPDX-License-Identifier: Apache-2.0
// Memory calls by their numbers, through libc's syscall(): the same as by their names.
#include <errno.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

static void* callFor(long number, void* address, size_t size, long third) {
  return (void*)syscall(number, address, size, third);
}

int main(void) {
  const size_t size = 4 * MIB;
  crowd();
  char* data = (char*)syscall(SYS_mmap, NULL, size, kRw, kPlain, -1, 0);
  EXPECT(data != MAP_FAILED && syscall(SYS_munmap, data, size) == 0);
  data = mapPlain(size);
  fill(data, size, 1);
  crowd();
  EXPECT(wrongWords(data, size, 1) == 0);
  EXPECT(syscall(SYS_madvise, data, MIB, MADV_DONTNEED) == 0);
  EXPECT(allBytesAre(data, 0, MIB));
  EXPECT(syscall(SYS_mprotect, data + MIB, MIB, PROT_READ) == 0);
  crowd();
  EXPECT(wrongFrom(data + MIB, 3 * MIB, 1, MIB / 8) == 0);
  EXPECT(syscall(SYS_mprotect, data + MIB, MIB, kRw) == 0);
  char* moved = (char*)syscall(SYS_mremap, data, size, 2 * size, MREMAP_MAYMOVE);
  EXPECT(moved != MAP_FAILED && wrongFrom(moved + MIB, 3 * MIB, 1, MIB / 8) == 0);
  crowd();
  EXPECT(syscall(SYS_munmap, moved + 2 * MIB, MIB) == 0);
  unsigned char in[512];
  errno = 0;
  EXPECT(syscall(SYS_mincore, moved + 2 * MIB, MIB, in) == -1 && errno == ENOMEM);
  errno = 0;
  EXPECT(callFor(SYS_msync, moved + 2 * MIB, MIB, MS_ASYNC) == (void*)-1 && errno == ENOMEM);
  errno = 0;
  EXPECT(callFor(SYS_mprotect, moved + 2 * MIB, MIB, PROT_READ) == (void*)-1 && errno == ENOMEM);
  const pid_t child = fork();
  if (child == 0) _exit(wrongFrom(moved + 3 * MIB, MIB, 1, 3 * MIB / 8) == 0 ? 3 : 4);
  ended("child", child);
  EXPECT(syscall(SYS_munmap, moved, 2 * size) == 0);
  EXPECT(syscall(SYS_close, 987654) == -1 && errno == EBADF);
  return done("syscall_memory");
}
