// SPDX-License-Identifier: Apache-2.0
// timer_create with threads and signals, and timerfd read into far memory.
#include <pthread.h>
#include <sys/timerfd.h>
#include <time.h>

#include "tests/hazards/hazard.h"

static int fired;
static void onTimer(union sigval value) {
  char* data = (char*)value.sival_ptr;
  char* block = (char*)malloc(200000);
  memcpy(block, data, kPage);
  EXPECT(wrongWords(block, kPage, 1) == 0);
  free(block);
  __atomic_fetch_add(&fired, 1, __ATOMIC_RELAXED);
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = onTimer;
  event.sigev_value.sival_ptr = data;
  timer_t timer;
  EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  struct itimerspec every = {{0, 2000000}, {0, 2000000}};
  EXPECT(timer_settime(timer, 0, &every, NULL) == 0);
  const int descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  EXPECT(timerfd_settime(descriptor, 0, &every, NULL) == 0);
  for (size_t i = 0; i < 20; ++i) {
    uint64_t* expired = (uint64_t*)(data + MIB + i * 8 * kPage);
    EXPECT(read(descriptor, expired, 8) == 8 && *expired >= 1);
    *expired = 1;
  }
  while (__atomic_load_n(&fired, __ATOMIC_RELAXED) < 20) crowd();
  EXPECT(timer_delete(timer) == 0);
  tell("data", data, 4 * MIB);
  return done("timers");
}
