// SPDX-License-Identifier: Apache-2.0
// A thread that libc has not started and does not count. For a runtime inside programs that are not
// its own:
//   - nothing of libc's start of a thread is run, which reads what the program has allocated (its
//     locale, for one): in a forked child that may be far memory, which only this thread can bring;
//   - the process ends with the program's last thread, and libc treats a program of one thread as
//     such;
//   - the "C" locale is in force in it, whose tables are libc's constants.
// What it runs may use libc's functions that need no more of a thread than its thread-local
// storage. Locks of libc's that are shared with other threads are not among them: libc may take
// them for those of a single thread (runtime/base/mutex.h has locks; a process-shared mutex is one
// as well). Its credentials are those of its maker (see Runtime::standAside()).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/result.h"

namespace tidepool {

class RawThread {
 public:
  /// From now on service threads are raw ones, if libc allows it. Once, by the process's first
  /// thread, before any is started. Looks into how libc lays out what it keeps of a thread.
  static void enable();
  static bool enabled();
  /// Makes room for so many threads at a time, while what the loader allocates for them is not
  /// managed memory yet: a program's own allocator may serve it. Those beyond get theirs later.
  /// Errors: kNoMemory.
  static Status prepare(int threads);
  /// How many there are in this process, up to those which are about to end.
  static int running();
  /// What they pass to exit(2): the status of the process, if they are its last threads.
  static void endWith(int status);
  /// Has libc take its locks in earnest, also in a process of one thread: for libraries with such
  /// locks that raw threads call. Does nothing where raw threads are not enabled.
  static void haveLibcLock();

  /// Waits until the kernel, too, has forgotten the threads that were joined. Until a moment after
  /// join() it counts them, and refuses what it grants to a process of one thread. Nobody starts
  /// or joins any meanwhile.
  static void awaitKernel();

  RawThread() = default;
  RawThread(const RawThread&) = delete;
  RawThread& operator=(const RawThread&) = delete;

  /// Runs `body(argument)`, with all signals blocked; `name` is for the error. Errors: kNoMemory.
  Status start(const char* name, void (*body)(void*), void* argument);
  /// Waits until it has ended.
  void join();
  /// In a forked child: the thread is the parent's. What it had is used by the next one here.
  void forget();
  /// Its kernel id; 0 when it does not run.
  pid_t id() const;

  /// Stack and thread-local storage.
  struct Place;

 private:
  Place* place_ = nullptr;
};

}  // namespace tidepool
