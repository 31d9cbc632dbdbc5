// SPDX-License-Identifier: Apache-2.0
// A preload behind ours: counts the calls that it sees, and says so at the end.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kMsync, kIoctl, kSyscall, kClose, kMunmap, kMadvise, kFork, kKinds };
static const char* const kNames[kKinds] = {"msync",  "ioctl",   "syscall", "close",
                                           "munmap", "madvise", "fork"};
static int seen[kKinds];

int msync(void* address, size_t size, int flags) {
  if (flags == MS_SYNC) ++seen[kMsync];
  return (int)(((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(SYS_msync, address, size, flags));
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (fd == 77) ++seen[kIoctl];
  return ((int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl"))(fd, request, argument);
}

long syscall(long number, ...) {
  va_list list;
  long a[6];
  va_start(list, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_getsid) ++seen[kSyscall];
  return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a[0], a[1], a[2], a[3], a[4],
                                                            a[5]);
}

int close(int fd) {
  if (fd == 77) ++seen[kClose];
  return ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
}

int munmap(void* address, size_t size) {
  if (size == 4096) ++seen[kMunmap];
  // By way of the first definition, as a tool does that has patched libc: this is for the kernel.
  return (int)syscall(SYS_munmap, address, size);
}

int madvise(void* address, size_t size, int advice) {
  if (size == 64 << 20 && advice == MADV_DONTNEED) ++seen[kMadvise];
  return ((int (*)(void*, size_t, int))dlsym(RTLD_NEXT, "madvise"))(address, size, advice);
}

/// What a handler of fork() may do in any program: allocate, and load a library, as those do that
/// look their calls up when they first need one.
static void allocate(void) {
  void* const blocks[] = {malloc(40), malloc(100000)};
  void* const library = dlopen("libm.so.6", RTLD_LAZY);
  if (blocks[0] != NULL && blocks[1] != NULL && library != NULL) ++seen[kFork];
  if (library != NULL) dlclose(library);
  free(blocks[1]);
  free(blocks[0]);
}

// Before ours, which are registered by a constructor that runs later.
__attribute__((constructor)) static void handleForks(void) {
  pthread_atfork(allocate, allocate, allocate);
}

__attribute__((destructor)) static void tell(void) {
  for (int i = 0; i < kKinds; ++i) printf("%s %d\n", kNames[i], seen[i]);
  fflush(stdout);
}
