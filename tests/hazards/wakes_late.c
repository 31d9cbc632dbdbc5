// SPDX-License-Identifier: Apache-2.0
// A process that is small at first, and is managed only later: its blocks from before live on, grow
// and are freed by any thread; copies of it, made in every way while it was small, come to use
// memory of their own; many threads come to it at once; a child of vfork() does not.
#include <malloc.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "tests/hazards/hazard.h"

enum { kSmall = 300, kThreads = 8 };

static char* small[kSmall];

static void makeSmall(void) {
  for (size_t i = 0; i < kSmall; ++i) {
    const size_t size = 64 + i * 8;
    switch (i % 4) {
      case 0:
        small[i] = malloc(size);
        break;
      case 1:
        small[i] = calloc(1, size);
        break;
      case 2:
        small[i] = memalign(64, size);
        break;
      default:
        small[i] = realloc(malloc(8), size);
    }
    fill(small[i], size / 8 * 8, i);
  }
}

static int wrongSmall(void) {
  int wrong = 0;
  for (size_t i = 0; i < kSmall; ++i) wrong += wrongWords(small[i], (64 + i * 8) / 8 * 8, i) != 0;
  return wrong;
}

/// Some grow to be far, some are freed, the others stay.
static void useSmall(void) {
  EXPECT(wrongSmall() == 0);
  for (size_t i = 0; i < kSmall; i += 60) {
    const size_t old_size = 64 + i * 8, size = 1 * MIB;
    char* grown = realloc(small[i], size);
    EXPECT(grown != NULL && wrongWords(grown, old_size / 8 * 8, i) == 0);
    EXPECT(malloc_usable_size(grown) >= size);
    fill(grown, size, i);
    crowd();
    EXPECT(wrongWords(grown, size, i) == 0);
    small[i] = realloc(grown, old_size);
  }
  EXPECT(wrongSmall() == 0);
  for (size_t i = 1; i < kSmall; i += 60) {
    free(small[i]);
    small[i] = malloc(64 + i * 8);
    fill(small[i], (64 + i * 8) / 8 * 8, i);
  }
  EXPECT(wrongSmall() == 0);
}

static pthread_barrier_t together;
static void* comeToUse(void* argument) {
  const size_t number = (size_t)argument;
  char* blocks[64];
  pthread_barrier_wait(&together);
  for (size_t i = 0; i < 64; ++i) {
    blocks[i] = malloc(16 * 1024);
    fill(blocks[i], 16 * 1024, number * 64 + i);
  }
  size_t wrong = 0;
  for (size_t i = 0; i < 64; ++i) {
    wrong += wrongWords(blocks[i], 16 * 1024, number * 64 + i);
    free(blocks[i]);
  }
  return (void*)wrong;
}

static void inThreads(void) {
  pthread_t threads[kThreads];
  pthread_barrier_init(&together, NULL, kThreads);
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT(pthread_create(&threads[i], NULL, comeToUse, (void*)i) == 0);
  }
  for (size_t i = 0; i < kThreads; ++i) {
    void* wrong = NULL;
    EXPECT(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
  }
}

static void child(const char* name, int threads) {
  if (threads) inThreads();
  useSmall();
  char* data = farData(4 * MIB, 5);
  EXPECT(wrongWords(data, 4 * MIB, 5) == 0);
  done(name);
  fflush(stdout);
  _exit(failures() != 0);
}

int main(void) {
  makeSmall();
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) child("a child of fork", 0);
  ended("fork", pid);
  pid = fork();
  if (pid == 0) child("threads of a child", 1);
  ended("fork, threads", pid);
  pid = _Fork();
  if (pid == 0) child("a child of _Fork", 0);
  ended("_Fork", pid);
  pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) child("a child of clone", 0);
  ended("clone", pid);
  pid = vfork();
  if (pid == 0) {
    // As a shell's expansion may; what it does not do is run on.
    volatile char* block = malloc(3 * MIB);
    block[0] = 1;
    _exit(3);
  }
  ended("vfork", pid);
  pid = fork();
  if (pid == 0) {
    pid = fork();
    if (pid == 0) child("a grandchild", 1);
    ended("its child", pid);
    child("a child that waited", 1);
  }
  ended("fork of a fork", pid);
  EXPECT(wrongSmall() == 0);
  inThreads();
  useSmall();
  char* data = farData(8 * MIB, 1);
  EXPECT(wrongWords(data, 8 * MIB, 1) == 0);
  return done("wakes_late");
}
