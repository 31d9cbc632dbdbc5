// SPDX-License-Identifier: Apache-2.0
// _exit with a status, while other threads are in the middle of far memory.
#include <pthread.h>

#include "tests/hazards/hazard.h"

static void* sweep(void* data) {
  for (uint64_t round = 0;; ++round) fill(data, 8 * MIB, round);
  return NULL;
}

int main(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i)
    EXPECT(pthread_create(&threads[i], NULL, sweep, farData(8 * MIB, 1)) == 0);
  crowd();
  done("early_exit");
  fflush(stdout);
  _exit(7);
}
