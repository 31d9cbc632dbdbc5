// SPDX-License-Identifier: Apache-2.0
// Threads: thousands that come and go, blocks freed by another thread than allocated them, and
// allocations in thread-specific destructors, after the allocator's own may have run.
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { kShortThreads = 5000, kRing = 1024, kPassed = 300000 };

static void* briefThread(void* argument) {
  const size_t number = (size_t)(uintptr_t)argument;
  char* block = malloc(1 + number % 3000);
  block[0] = (char)number;
  char* other = calloc(1, 70000);
  EXPECT(other[69999] == 0);
  free(other);
  return block;  // freed by main
}

static void manyThreads(void) {
  for (int i = 0; i < kShortThreads; i += 4) {
    pthread_t threads[4];
    for (int j = 0; j < 4; ++j) {
      EXPECT(pthread_create(&threads[j], NULL, briefThread, (void*)(uintptr_t)(i + j)) == 0);
    }
    for (int j = 0; j < 4; ++j) {
      void* block;
      EXPECT(pthread_join(threads[j], &block) == 0);
      EXPECT(*(char*)block == (char)(i + j));
      free(block);
    }
  }
}

// One producer, one consumer, a ring of blocks between them.
static _Atomic(char*) ring[kRing];

static void* produce(void* unused) {
  for (int i = 0; i < kPassed; ++i) {
    const size_t size = i % 1000 == 0 ? 300000 : 1 + (size_t)i % 500;
    char* block = malloc(size);
    memset(block, i & 127, size < 64 ? size : 64);
    while (atomic_load(&ring[i % kRing]) != NULL) sched_yield();
    atomic_store(&ring[i % kRing], block);
  }
  return unused;
}

static void crossThreadFree(void) {
  pthread_t producer;
  EXPECT(pthread_create(&producer, NULL, produce, NULL) == 0);
  for (int i = 0; i < kPassed; ++i) {
    char* block;
    while ((block = atomic_exchange(&ring[i % kRing], NULL)) == NULL) sched_yield();
    EXPECT(block[0] == (i & 127));
    free(block);
  }
  EXPECT(pthread_join(producer, NULL) == 0);
}

static pthread_key_t keys[40];  // more than fit in the thread's own block: the rest is allocated
static atomic_int destructors_run;

static void allocateInDestructor(void* value) {
  free(value);
  char* late = malloc(500);
  memset(late, 1, 500);
  late = realloc(late, 100000);
  free(late);
  atomic_fetch_add(&destructors_run, 1);
}

static void* setKeys(void* unused) {
  for (int i = 0; i < 40; ++i) pthread_setspecific(keys[i], malloc(64));
  return unused;
}

static void destructorsAllocate(void) {
  for (int i = 0; i < 40; ++i) EXPECT(pthread_key_create(&keys[i], allocateInDestructor) == 0);
  for (int i = 0; i < 50; ++i) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, setKeys, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
  }
  EXPECT(atomic_load(&destructors_run) == 40 * 50);
}

int main(void) {
  manyThreads();
  crossThreadFree();
  destructorsAllocate();
  leaveSome();
  printf("threads checked\n");
  return failures();
}
