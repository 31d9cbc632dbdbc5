// SPDX-License-Identifier: Apache-2.0
// Which allocator serves the calling thread, as one word of TLS: the single thing malloc's fast
// path looks at. InternalScope switches a thread to the internal heap while it runs Tidepool's own
// code, so that the runtime never allocates from the memory it manages. Per-thread, no locking.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace tidepool {

enum class ThreadMode : uint32_t {
  kUnbound = 0,   // first call of this thread: take the slow path
  kManaged = 1,   // program thread with an arena in the managed space
  kInternal = 2,  // inside Tidepool: internal heap, mappings straight from the kernel
  kLibc = 3,      // Tidepool is not managing this process
  kAsleep = 4,    // not yet, and libc serves meanwhile: never a thread's own word
};

// initial-exec: reading it is one load off the thread pointer and can never allocate.
extern __thread ThreadMode t_thread_mode __attribute__((tls_model("initial-exec")));

/// The word alone, for the while in which a lock is held that a fork needs (shim/fork.h).
class InternalMark {
 public:
  InternalMark() : saved_(t_thread_mode) { t_thread_mode = ThreadMode::kInternal; }
  ~InternalMark() { t_thread_mode = saved_; }
  InternalMark(const InternalMark&) = delete;
  InternalMark& operator=(const InternalMark&) = delete;

 private:
  ThreadMode saved_;
};

/// Nests. Threads started inside get their TLS blocks from the internal heap too. The thread cannot
/// be cancelled inside: system calls that are cancellation points are made there with locks held.
class InternalScope {
 public:
  InternalScope() : saved_(t_thread_mode) {
    t_thread_mode = ThreadMode::kInternal;
    if (saved_ != ThreadMode::kInternal) {
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved_cancel_state_);
    }
  }
  ~InternalScope() {
    if (saved_ != ThreadMode::kInternal) pthread_setcancelstate(saved_cancel_state_, nullptr);
    t_thread_mode = saved_;
  }
  InternalScope(const InternalScope&) = delete;
  InternalScope& operator=(const InternalScope&) = delete;

 private:
  ThreadMode saved_;
  int saved_cancel_state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace tidepool
