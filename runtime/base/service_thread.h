// SPDX-License-Identifier: Apache-2.0
// A thread of the runtime's own: marked internal (invariant I2), named, deaf to the program's
// signals. Unknown to libc where raw threads are enabled. Started and joined by its owner's thread;
// not copyable.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "runtime/base/atomic_wait.h"
#include "runtime/base/fork_kind.h"
#include "runtime/base/mapping.h"
#include "runtime/base/raw_thread.h"
#include "runtime/base/result.h"

namespace tidepool {

class ServiceThread {
 public:
  ServiceThread() = default;
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  /// Runs `body(argument)` in a new thread called `name` (15 characters at most, static).
  /// Errors: kNoMemory.
  Status start(const char* name, void (*body)(void*), void* argument);
  /// Waits until the body is about to run. A process that is forked while a thread of it starts may
  /// copy locks which libc, or a sanitizer, has taken for that.
  void awaitBegin() const {
    if (running_) waitWhile(begun_, 0);
  }
  /// Waits for the body to return; the owner has told it to. Does nothing if it does not run. In a
  /// child of fork(), forgets it: it is the parent's.
  void join();
  bool running() const { return running_; }
  /// In a child that has a copy of its parent's memory, before anything else here: how it came to
  /// be.
  static void inChild(ForkKind kind);
  /// Then: the thread is the parent's, and there is none to join.
  void forget();
  /// Its clock of processor time; 0 if it does not run.
  clockid_t clock() const;

 private:
  static void* main(void* self);
  Status startWithLibc();
  int create();

  const char* name_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  RawThread raw_;
  bool is_raw_ = false;
  // Without raw threads:
  pthread_t thread_{};
  // Of our own: libc would give out that of a thread that has ended, and read tables of that one,
  // which may be far memory that nobody serves yet (in a child of fork()).
  Mapping stack_;
  std::atomic<uint32_t> begun_{0};
  pid_t process_ = 0;  // whose it is
  bool running_ = false;
};

}  // namespace tidepool
