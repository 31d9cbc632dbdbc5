// SPDX-License-Identifier: Apache-2.0
// pthread_cancel of threads in loops that allocate: cancellation comes at the points where it may,
// and no lock stays behind.
#include <pthread.h>

#include "tests/hazards/hazard.h"

static void* loop(void* unused) {
  for (volatile unsigned i = 0;; ++i) {
    char* block = (char*)malloc(1 + i % 50000);
    pthread_cleanup_push(free, block);
    block[0] = 1;
    pthread_testcancel();
    char* range = mapPlain(128 * 1024);
    range[0] = 1;
    munmap(range, 128 * 1024);
    if (i % 64 == 0) usleep(1);
    pthread_cleanup_pop(1);
  }
  return unused;
}

int main(void) {
  crowd();
  int cancelled = 0;
  for (int i = 0; i < 200; ++i) {
    pthread_t thread;
    void* result = NULL;
    EXPECT(pthread_create(&thread, NULL, loop, NULL) == 0);
    free(malloc((size_t)i * 1000));
    if (i % 3 == 0) usleep(200);
    EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    cancelled += result == PTHREAD_CANCELED;
  }
  printf("%d cancelled\n", cancelled);
  crowd();
  char* data = farBlock(4 * MIB, 1);
  tell("data", data, 4 * MIB);
  return done("thread_cancel");
}
