// SPDX-License-Identifier: Apache-2.0
// The interposed functions that make words for the kernel to know: locks that processes may share,
// robust ones (the kernel frees those of a thread that died) and the descriptor of a thread on a
// stack of the program's own, whose end the kernel tells there. In managed memory their pages stay
// local until they are released. Thread-safe.
#include <pthread.h>
#include <semaphore.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "shim/engine.h"
#include "shim/export.h"
#include "shim/futex_wait.h"
#include "shim/next_definition.h"

namespace tidepool {
namespace {

/// Of any kind of attributes; those that cannot be asked are not shared.
template <typename Attributes>
bool isShared(const Attributes* attributes, int (*ask)(const Attributes*, int*)) {
  int shared = PTHREAD_PROCESS_PRIVATE;
  return attributes != nullptr && ask(attributes, &shared) == 0 && shared == PTHREAD_PROCESS_SHARED;
}

bool isRobust(const pthread_mutexattr_t* attributes) {
  int robust = PTHREAD_MUTEX_STALLED;
  return attributes != nullptr && pthread_mutexattr_getrobust(attributes, &robust) == 0 &&
         robust == PTHREAD_MUTEX_ROBUST;
}

/// The stack that the program gives a thread; empty if it gives none.
std::span<const char> stackOf(const pthread_attr_t* attributes) {
  void* start = nullptr;
  size_t size = 0;
  if (attributes == nullptr || pthread_attr_getstack(attributes, &start, &size) != 0) return {};
  // Libc has a size without a stack end at 0.
  if (start == nullptr || reinterpret_cast<uintptr_t>(start) + size == 0) return {};
  return {static_cast<const char*>(start), size};
}

/// Libc puts the descriptor at the end of the stack, at most a page below it, and thread-local
/// storage below that, where ours and errno are as far from it as in every thread. The kernel
/// writes to the one when the thread ends, Tidepool's code touches the other under locks.
void keepDescriptor(std::span<const char> stack) {
  const auto* const descriptor = static_cast<const char*>(__builtin_thread_pointer());
  const std::array<const void*, 3> touched = {&t_thread_mode, &errno, descriptor};
  for (const void* each : touched) {
    const auto below = static_cast<size_t>(descriptor - static_cast<const char*>(each));
    const size_t end = stack.size() - std::min(stack.size(), below - std::min(below, kPageSize));
    const size_t size = std::min<size_t>(end, 3 * kPageSize);
    if (size > 0) keepLocal(stack.data() + end - size, size);
  }
}

}  // namespace
}  // namespace tidepool

using namespace tidepool;

extern "C" {

TP_EXPORT int pthread_mutex_init(pthread_mutex_t* mutex,
                                 const pthread_mutexattr_t* attributes) noexcept {
  static auto* const real = nextDefinition<decltype(pthread_mutex_init)>("pthread_mutex_init");
  const int error = real(mutex, attributes);
  if (error == 0 && (isShared(attributes, pthread_mutexattr_getpshared) || isRobust(attributes))) {
    keepLocal(mutex, sizeof *mutex);
  }
  return error;
}

TP_EXPORT int pthread_cond_init(pthread_cond_t* condition,
                                const pthread_condattr_t* attributes) noexcept {
  static auto* const real = nextDefinition<decltype(pthread_cond_init)>("pthread_cond_init");
  const int error = real(condition, attributes);
  if (error == 0 && isShared(attributes, pthread_condattr_getpshared)) {
    keepLocal(condition, sizeof *condition);
  }
  return error;
}

TP_EXPORT int pthread_rwlock_init(pthread_rwlock_t* lock,
                                  const pthread_rwlockattr_t* attributes) noexcept {
  static auto* const real = nextDefinition<decltype(pthread_rwlock_init)>("pthread_rwlock_init");
  const int error = real(lock, attributes);
  if (error == 0 && isShared(attributes, pthread_rwlockattr_getpshared)) {
    keepLocal(lock, sizeof *lock);
  }
  return error;
}

TP_EXPORT int pthread_barrier_init(pthread_barrier_t* barrier,
                                   const pthread_barrierattr_t* attributes,
                                   unsigned count) noexcept {
  static auto* const real = nextDefinition<decltype(pthread_barrier_init)>("pthread_barrier_init");
  const int error = real(barrier, attributes, count);
  if (error == 0 && isShared(attributes, pthread_barrierattr_getpshared)) {
    keepLocal(barrier, sizeof *barrier);
  }
  return error;
}

TP_EXPORT int sem_init(sem_t* semaphore, int shared, unsigned value) noexcept {
  static auto* const real = nextDefinition<decltype(sem_init)>("sem_init");
  const int error = real(semaphore, shared, value);
  if (error == 0 && shared != 0) keepLocal(semaphore, sizeof *semaphore);
  return error;
}

TP_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                             void* (*start)(void*), void* argument) noexcept {
  static auto* const real = nextDefinition<decltype(pthread_create)>("pthread_create");
  keepDescriptor(stackOf(attributes));
  return real(thread, attributes, start, argument);
}

}  // extern "C"
