// SPDX-License-Identifier: Apache-2.0
// Locks, condition variables and semaphores in far memory: private, process-shared and robust ones;
// a waiter sleeps on a page that leaves.
#include <pthread.h>
#include <semaphore.h>

#include "tests/hazards/hazard.h"

typedef struct {
  pthread_mutex_t plain, robust, shared;
  pthread_cond_t turn;
  sem_t posted;
  int turns, whose;
} Locks;
static Locks* locks;

static void* player(void* argument) {
  const int me = (int)(uintptr_t)argument;
  for (int i = 0; i < 200; ++i) {
    pthread_mutex_lock(&locks->plain);
    while (locks->whose != me) pthread_cond_wait(&locks->turn, &locks->plain);
    ++locks->turns;
    locks->whose = !me;
    pthread_cond_broadcast(&locks->turn);
    pthread_mutex_unlock(&locks->plain);
    sem_post(&locks->posted);
    if (i % 50 == 0 && me == 0) {
      char* away = mapPlain(16 * MIB);
      fill(away, 16 * MIB, 1);
      munmap(away, 16 * MIB);
    }
  }
  return NULL;
}

static void* dieHolding(void* unused) {
  pthread_mutex_lock(&locks->robust);
  return unused;
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  locks = (Locks*)(data + MIB + 64);
  memset(locks, 0, sizeof *locks);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  EXPECT(pthread_mutex_init(&locks->plain, NULL) == 0 &&
         pthread_cond_init(&locks->turn, NULL) == 0);
  EXPECT(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  EXPECT(pthread_mutex_init(&locks->shared, &attributes) == 0);
  EXPECT(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  EXPECT(pthread_mutex_init(&locks->robust, &attributes) == 0 &&
         sem_init(&locks->posted, 1, 0) == 0);
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i)
    EXPECT(pthread_create(&threads[i], NULL, player, (void*)(uintptr_t)i) == 0);
  for (int i = 0; i < 400; ++i) EXPECT(sem_wait(&locks->posted) == 0);
  for (int i = 0; i < 2; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  printf("%d turns\n", locks->turns);
  for (int i = 0; i < 50; ++i) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, dieHolding, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (i % 10 == 0) crowd();
    EXPECT(pthread_mutex_lock(&locks->robust) == EOWNERDEAD);
    EXPECT(pthread_mutex_consistent(&locks->robust) == 0 &&
           pthread_mutex_unlock(&locks->robust) == 0);
  }
  EXPECT(pthread_mutex_lock(&locks->shared) == 0 && pthread_mutex_unlock(&locks->shared) == 0);
  tell("data", data, MIB);
  return done("futex_far");
}
