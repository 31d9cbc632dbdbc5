// SPDX-License-Identifier: Apache-2.0
// fork() of a process that has loaded libraries, with thread-local data among them: the dynamic loader
// keeps what it knows of them in the heap and reads it when a thread is created, in the child before
// anything else can happen there. The pages are far by then.
#include <dlfcn.h>
#include <pthread.h>

#include "hazard.h"

enum { kBlocks = 3000, kBlockBytes = 600, kForks = 8 };
static char* blocks[kBlocks];

static void fillBlocks(int first, int end) {
  for (int i = first; i < end; ++i) {
    blocks[i] = (char*)malloc(kBlockBytes);
    fill(blocks[i], kBlockBytes, 100 + (uint64_t)i);
  }
}

static void* look(void* unused) {
  (void)unused;
  uintptr_t wrong = 0;
  for (int i = 0; i < kBlocks; ++i) {
    wrong += wrongWords(blocks[i], kBlockBytes, 100 + (uint64_t)i) != 0;
  }
  return (void*)wrong;
}

static int lookInAThread(void) {
  pthread_t thread;
  void* wrong = NULL;
  if (pthread_create(&thread, NULL, look, NULL) != 0 || pthread_join(thread, &wrong) != 0) return 2;
  return wrong != NULL || dlopen("libm.so.6", RTLD_NOW) == NULL;
}

int main(void) {
  fillBlocks(0, kBlocks / 2);
  static const char* const kNames[] = {"libgomp.so.1", "libstdc++.so.6", "libm.so.6"};
  for (size_t i = 0; i < sizeof kNames / sizeof *kNames; ++i) {
    printf("%s %s\n", kNames[i], dlopen(kNames[i], RTLD_NOW) != NULL ? "loaded" : "missing");
  }
  fillBlocks(kBlocks / 2, kBlocks);
  char* ballast = mapPlain(BALLAST);
  int good = 0;
  for (int i = 0; i < kForks; ++i) {
    fill(ballast, BALLAST, (uint64_t)i);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(lookInAThread());
    int status = -1;
    waitpid(child, &status, 0);
    good += status == 0;
  }
  printf("%d of %d children saw what they must, the parent %d\n", good, kForks, look(NULL) == NULL);
  return 0;
}
