// SPDX-License-Identifier: Apache-2.0
// Threads sleep in locks in managed memory that processes may share, and in a robust one whose
// owner dies, while their pages are pushed out. All must wake.
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "asleep.h"

enum { kRounds = 3, kSleepers = 6 };

typedef struct {
  pthread_mutex_t mutex, guard, robust;
  pthread_cond_t condition;
  pthread_rwlock_t readers;
  pthread_barrier_t barrier;
  sem_t posted;
  int turn;
} Locks;

typedef struct {
  Locks* locks;
  void (*wait)(Locks*);
  atomic_int number;
} Sleeper;

static void onMutex(Locks* locks) {
  EXPECT(pthread_mutex_lock(&locks->mutex) == 0 && pthread_mutex_unlock(&locks->mutex) == 0);
}
static void onCondition(Locks* locks) {
  EXPECT(pthread_mutex_lock(&locks->guard) == 0);
  while (!locks->turn) pthread_cond_wait(&locks->condition, &locks->guard);
  EXPECT(pthread_mutex_unlock(&locks->guard) == 0);
}
static void onReaders(Locks* locks) {
  EXPECT(pthread_rwlock_wrlock(&locks->readers) == 0 &&
         pthread_rwlock_unlock(&locks->readers) == 0);
}
static void onBarrier(Locks* locks) {
  const int last = pthread_barrier_wait(&locks->barrier);
  EXPECT(last == 0 || last == PTHREAD_BARRIER_SERIAL_THREAD);
}
static void onSemaphore(Locks* locks) {
  while (sem_wait(&locks->posted) != 0) EXPECT(errno == EINTR);
}
static void onRobust(Locks* locks) {
  EXPECT(pthread_mutex_lock(&locks->robust) == EOWNERDEAD);
  EXPECT(pthread_mutex_consistent(&locks->robust) == 0 &&
         pthread_mutex_unlock(&locks->robust) == 0);
}

static void* sleepOn(void* argument) {
  Sleeper* self = (Sleeper*)argument;
  atomic_store(&self->number, threadNumber());
  self->wait(self->locks);
  return NULL;
}

static atomic_int held, may_die;
static void* dieHolding(void* argument) {
  Locks* locks = (Locks*)argument;
  EXPECT(pthread_mutex_lock(&locks->robust) == 0);
  atomic_store(&held, 1);
  while (!atomic_load(&may_die)) sched_yield();
  return NULL;
}

static void make(Locks* locks) {
  pthread_mutexattr_t mutex;
  pthread_condattr_t condition;
  pthread_rwlockattr_t readers;
  pthread_barrierattr_t barrier;
  const int shared = PTHREAD_PROCESS_SHARED;
  memset(locks, 0, sizeof *locks);
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
  EXPECT(pthread_mutex_init(&locks->robust, &mutex) == 0);
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, shared);
  EXPECT(pthread_mutex_init(&locks->mutex, &mutex) == 0);
  EXPECT(pthread_mutex_init(&locks->guard, &mutex) == 0);
  pthread_condattr_init(&condition);
  pthread_condattr_setpshared(&condition, shared);
  EXPECT(pthread_cond_init(&locks->condition, &condition) == 0);
  pthread_rwlockattr_init(&readers);
  pthread_rwlockattr_setpshared(&readers, shared);
  EXPECT(pthread_rwlock_init(&locks->readers, &readers) == 0);
  pthread_barrierattr_init(&barrier);
  pthread_barrierattr_setpshared(&barrier, shared);
  EXPECT(pthread_barrier_init(&locks->barrier, &barrier, 2) == 0);
  EXPECT(sem_init(&locks->posted, 1, 0) == 0);
}

static void oneRound(Locks* locks) {
  void (*const ways[kSleepers])(Locks*) = {onMutex,   onCondition, onReaders,
                                           onBarrier, onSemaphore, onRobust};
  Sleeper sleepers[kSleepers];
  pthread_t threads[kSleepers], dying;
  make(locks);
  atomic_store(&held, 0);
  atomic_store(&may_die, 0);
  EXPECT(pthread_mutex_lock(&locks->mutex) == 0 && pthread_rwlock_rdlock(&locks->readers) == 0);
  EXPECT(pthread_create(&dying, NULL, dieHolding, locks) == 0);
  while (!atomic_load(&held)) sched_yield();
  for (int i = 0; i < kSleepers; ++i) {
    sleepers[i].locks = locks;
    sleepers[i].wait = ways[i];
    atomic_init(&sleepers[i].number, 0);
    EXPECT(pthread_create(&threads[i], NULL, sleepOn, &sleepers[i]) == 0);
    while (atomic_load(&sleepers[i].number) == 0) sched_yield();
    untilAsleep(atomic_load(&sleepers[i].number));
  }
  stir((char*)locks - 64, 1, 0);
  atomic_store(&may_die, 1);
  EXPECT(pthread_mutex_lock(&locks->guard) == 0);
  locks->turn = 1;
  EXPECT(pthread_cond_broadcast(&locks->condition) == 0);
  EXPECT(pthread_mutex_unlock(&locks->guard) == 0);
  EXPECT(pthread_mutex_unlock(&locks->mutex) == 0 && pthread_rwlock_unlock(&locks->readers) == 0);
  EXPECT(sem_post(&locks->posted) == 0);
  onBarrier(locks);
  for (int i = 0; i < kSleepers; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  EXPECT(pthread_join(dying, NULL) == 0);
}

int main(void) {
  char* data = farData(4 * MIB, 1);
  for (int i = 0; i < kRounds; ++i) oneRound((Locks*)(data + (size_t)i * 32 * kPage + 64));
  tell("rest", data + 2 * MIB, 2 * MIB);
  return done("futex_shared_locks");
}
