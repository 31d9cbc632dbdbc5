// SPDX-License-Identifier: Apache-2.0
// What a program asks of the kernel reaches a preload behind ours, once each; and that one's
// handlers of fork() may do what they may do elsewhere.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  char* small = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(small, 1, 4096);
  printf("%d\n", msync(small, 4096, MS_SYNC));
  printf("%d\n", munmap(small, 4096));
  printf("%d\n", ioctl(77, FIONREAD, NULL));
  printf("%d\n", syscall(SYS_getsid, 0) > 0);
  printf("%d\n", close(77));
  char* large = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(large, 1, 64 << 20);
  printf("%d\n", madvise(large, 64 << 20, MADV_DONTNEED));
  printf("%d %d\n", large[0], large[63 << 20]);
  printf("%d\n", munmap(large, 64 << 20));
  void* const block = malloc(1 << 20);
  const pid_t child = fork();
  if (child == 0) _exit(block == NULL || malloc(100) == NULL);
  int status = -1;
  printf("%d %d\n", waitpid(child, &status, 0) == child, status);
  return 0;
}
