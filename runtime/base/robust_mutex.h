// SPDX-License-Identifier: Apache-2.0
// A mutex in memory that processes share, which outlives its holder: the next owner after a
// holder's death (SIGKILL and exec included) is told. Zeroed memory is not one: call init() once.
// Never moved, never destroyed: it goes with its memory.
#pragma once

#include <pthread.h>

#include <cerrno>

#include "runtime/base/check.h"

namespace tidepool {

class RobustMutex {
 public:
  enum class Taken { kYes, kOwnerDied, kBusy };

  void init() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    TP_CHECK_OP(pthread_mutex_init(&mutex_, &attributes), ==, 0);
    pthread_mutexattr_destroy(&attributes);
  }
  /// kOwnerDied: taken too, and what it guards is as the dead holder left it.
  Taken lock() { return outcome(pthread_mutex_lock(&mutex_)); }
  Taken tryLock() { return outcome(pthread_mutex_trylock(&mutex_)); }
  void unlock() { TP_CHECK_OP(pthread_mutex_unlock(&mutex_), ==, 0); }

 private:
  Taken outcome(int error) {
    if (error == EBUSY) return Taken::kBusy;
    if (error == 0) return Taken::kYes;
    TP_CHECK_OP(error, ==, EOWNERDEAD);
    TP_CHECK_OP(pthread_mutex_consistent(&mutex_), ==, 0);
    return Taken::kOwnerDied;
  }
  pthread_mutex_t mutex_;
};

}  // namespace tidepool
