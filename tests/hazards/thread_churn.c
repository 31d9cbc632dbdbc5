// SPDX-License-Identifier: Apache-2.0
// Thousands of threads start and end, some with stacks in managed memory, some detached, each with
// blocks of its own and thread-specific destructors.
#include <pthread.h>

#include "tests/hazards/hazard.h"

enum { kThreads = 4000, kAtOnce = 8, kStack = 128 * 1024 };
static pthread_key_t key;

static void* brief(void* argument) {
  const size_t number = (size_t)(uintptr_t)argument;
  uint64_t* block = (uint64_t*)malloc(8 * (1 + number % 2000));
  fill(block, 8 * (1 + number % 2000), number);
  pthread_setspecific(key, malloc(64));
  return block;
}

int main(void) {
  EXPECT(pthread_key_create(&key, free) == 0);
  const size_t size = 8 * MIB;
  char* data = farData(size, 1);
  char* stacks = farData((size_t)kAtOnce * kStack, 2);
  uint64_t sum = 0;
  for (size_t i = 0; i < kThreads; i += kAtOnce) {
    pthread_t threads[kAtOnce];
    for (size_t j = 0; j < kAtOnce; ++j) {
      pthread_attr_t attributes;
      pthread_attr_init(&attributes);
      if (j % 2 == 0) EXPECT(pthread_attr_setstack(&attributes, stacks + j * kStack, kStack) == 0);
      EXPECT(pthread_create(&threads[j], &attributes, brief, (void*)(uintptr_t)(i + j)) == 0);
      pthread_attr_destroy(&attributes);
    }
    for (size_t j = 0; j < kAtOnce; ++j) {
      void* block = NULL;
      EXPECT(pthread_join(threads[j], &block) == 0);
      EXPECT(wrongWords(block, 8 * (1 + (i + j) % 2000), i + j) == 0);
      sum += digest(block, 8 * (1 + (i + j) % 2000));
      free(block);
    }
    if (i % 1000 == 0) crowd();
  }
  printf("sum %016llx\n", (unsigned long long)sum);
  tell("data", data, size);
  return done("thread_churn");
}
