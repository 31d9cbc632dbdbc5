// SPDX-License-Identifier: Apache-2.0
// fork() of a process that has loaded libraries, with thread-local data among them: the dynamic
// loader keeps what it knows of them in the heap and reads it when a thread is created, in the
// child before anything else can happen there. The pages are far by then.
#include <dlfcn.h>
#include <pthread.h>

#include "fork_blocks.h"

enum { kBlockBytes = 600 };

static void load(void) {
  static const char* const kNames[] = {"libgomp.so.1", "libstdc++.so.6", "libm.so.6"};
  for (size_t i = 0; i < sizeof kNames / sizeof *kNames; ++i) {
    printf("%s %s\n", kNames[i], dlopen(kNames[i], RTLD_NOW) != NULL ? "loaded" : "missing");
  }
}

static void* count(void* unused) {
  (void)unused;
  return (void*)(uintptr_t)wrongBlocks(kBlockBytes);
}

static int look(void) {
  pthread_t thread;
  void* wrong = NULL;
  if (pthread_create(&thread, NULL, count, NULL) != 0 || pthread_join(thread, &wrong) != 0)
    return 2;
  return wrong != NULL || dlopen("libm.so.6", RTLD_NOW) == NULL;
}

int main(void) {
  surround(load, kBlockBytes);
  forkAndLook(look);
  return 0;
}
