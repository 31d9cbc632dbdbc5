// SPDX-License-Identifier: Apache-2.0
// Threads that libc does not know of, and locks that hold for them while libc believes that there
// is one thread. Each test is a process of its own: no thread of libc's may have been started in
// it.
#include "runtime/base/raw_thread.h"

#include <gtest/gtest.h>
#include <locale.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "runtime/base/mutex.h"
#include "runtime/base/robust_mutex.h"
#include "runtime/base/service_thread.h"

namespace tidepool {
namespace {

/// Runs `body` in a child without threads, which says whether all went well.
template <typename Body>
void inProcess(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    RawThread::enable();
    _exit(RawThread::enabled() ? body() : 99);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#ifndef TIDEPOOL_SANITIZED  // which follow libc's threads alone

thread_local int own = 41;

TEST(RawThread, HasAnIdErrnoAndThreadLocalsOfItsOwn) {
  inProcess([] {
    struct Seen {
      pid_t id = 0;
      int value = 0, masked = 0;
    } seen;
    errno = EDOM;
    own = 1;
    RawThread thread;
    const auto body = [](void* argument) {
      auto* out = static_cast<Seen*>(argument);
      out->id = gettid();
      out->value = ++own;
      errno = ERANGE;
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      out->masked = sigismember(&mask, SIGTERM);
    };
    if (!thread.start("test", body, &seen)) return 1;
    const pid_t id = thread.id();
    thread.join();
    const bool right = seen.value == 42 && own == 1 && errno == EDOM && seen.masked == 1;
    return right && seen.id != 0 && seen.id != getpid() && (id == 0 || id == seen.id) ? 0 : 2;
  });
}

TEST(RawThread, IsInTheCLocaleWhateverTheProgramHasSet) {
  inProcess([] {
    if (setlocale(LC_ALL, "C.UTF-8") == nullptr) return 1;
    RawThread thread;
    size_t longest = 0;
    const auto body = [](void* out) { *static_cast<size_t*>(out) = MB_CUR_MAX; };
    if (!thread.start("test", body, &longest)) return 2;
    thread.join();
    return longest == 1 && MB_CUR_MAX > 1 ? 0 : 3;
  });
}

TEST(RawThread, IsStartedAgainInAForkedChildWhereItWas) {
  inProcess([] {
    static std::atomic<int> runs{0};
    RawThread thread;
    const auto body = [](void*) {
      runs.fetch_add(1);
      for (;;) pause();
    };
    if (!thread.start("test", body, nullptr)) return 1;
    while (runs.load() == 0) sched_yield();
    for (int depth = 0; depth < 20; ++depth) {
      const pid_t child = fork();
      if (child != 0) {
        int status = -1;
        waitpid(child, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
      }
      thread.forget();
      if (RawThread::running() != 0) return 5;
      if (!thread.start("test", body, nullptr) || RawThread::running() != 1) return 6;
      while (runs.load() < depth + 2) sched_yield();
    }
    return 0;
  });
}

TEST(RawThread, HoldsRobustMutexesWhoseOwnerIsSeenToDie) {
  inProcess([] {
    static RobustMutex mutex;
    mutex.init();
    RawThread thread;
    if (!thread.start(
            "test", [](void*) { mutex.lock(); }, nullptr))
      return 1;
    thread.join();
    return mutex.lock() == RobustMutex::Taken::kOwnerDied ? 0 : 2;
  });
}

#endif

struct Shared {
  Mutex mutex;
  CondVar turned;
  uint64_t count = 0;
  int turn = 0;
};

/// Three threads and the caller: each adds to one counter, and takes turns with the others.
int shareOneLock(bool raw) {
  constexpr int kThreads = 3, kTurns = 2000, kAdds = 200000;
  struct Worker {
    Shared* shared;
    int number;
    ServiceThread thread;
    static void run(void* argument) {
      auto* self = static_cast<Worker*>(argument);
      for (int i = 0; i < kAdds; ++i) {
        MutexLock lock(self->shared->mutex);
        ++self->shared->count;
      }
      for (int i = 0; i < kTurns; ++i) {
        MutexLock lock(self->shared->mutex);
        while (self->shared->turn % (kThreads + 1) != self->number) {
          self->shared->turned.wait(self->shared->mutex);
        }
        ++self->shared->turn;
        self->shared->turned.notifyAll();
      }
    }
  };
  if (raw) RawThread::enable();
  Shared shared;
  std::array<Worker, kThreads + 1> workers;
  for (int i = 0; i <= kThreads; ++i) {
    workers[static_cast<size_t>(i)].shared = &shared;
    workers[static_cast<size_t>(i)].number = i;
  }
  for (int i = 0; i < kThreads; ++i) {
    Worker& worker = workers[static_cast<size_t>(i)];
    if (!worker.thread.start("tidepool-test", Worker::run, &worker)) return 1;
  }
  Worker::run(&workers.back());
  for (Worker& worker : workers) worker.thread.join();
  const bool right =
      shared.count == (kThreads + 1) * uint64_t{kAdds} && shared.turn == (kThreads + 1) * kTurns;
  return right ? 0 : 2;
}

#ifndef TIDEPOOL_SANITIZED
TEST(Mutex, HoldsBetweenRawThreadsInAProcessThatLibcTakesForOneOfOneThread) {
  inProcess([] { return shareOneLock(true); });
}
#endif

TEST(Mutex, HoldsBetweenThreadsOfLibcs) { EXPECT_EQ(shareOneLock(false), 0); }

}  // namespace
}  // namespace tidepool
