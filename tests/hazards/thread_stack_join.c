// SPDX-License-Identifier: Apache-2.0
// A thread waits for the end of another that runs on a stack in managed memory: the kernel tells
// the end in a word of that stack, whose page is pushed out meanwhile.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "asleep.h"

enum { kRounds = 3, kStack = 256 << 10 };
static atomic_int may_end, joiner;

static void* untilTold(void* argument) {
  while (!atomic_load(&may_end)) sched_yield();
  return argument;
}

static void* join(void* argument) {
  void* result = NULL;
  atomic_store(&joiner, threadNumber());
  EXPECT(pthread_join(*(pthread_t*)argument, &result) == 0);
  return result;
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  for (int i = 0; i < kRounds; ++i) {
    pthread_t thread, waiting;
    pthread_attr_t attributes;
    void* result = NULL;
    atomic_store(&may_end, 0);
    atomic_store(&joiner, 0);
    pthread_attr_init(&attributes);
    EXPECT(pthread_attr_setstack(&attributes, data + (size_t)i * kStack, kStack) == 0);
    EXPECT(pthread_create(&thread, &attributes, untilTold, data) == 0);
    EXPECT(pthread_create(&waiting, NULL, join, &thread) == 0);
    while (atomic_load(&joiner) == 0) sched_yield();
    untilAsleep(atomic_load(&joiner));
    stir((char*)((uintptr_t)thread & ~(uintptr_t)(kPage - 1)), 1, 0);
    atomic_store(&may_end, 1);
    EXPECT(pthread_join(waiting, &result) == 0 && result == data);
  }
  tell("rest", data + 2 * MIB, 2 * MIB);
  return done("thread_stack_join");
}
