// SPDX-License-Identifier: Apache-2.0
// Which allocator serves the calling thread, as one word of TLS: the single thing malloc's fast
// path looks at. InternalScope switches a thread to the internal heap while it runs Tidepool's own
// code, so that the runtime never allocates from the memory it manages. Per-thread, no locking.
#pragma once

#include <cstdint>

namespace tidepool {

enum class ThreadMode : uint32_t {
  kUnbound = 0,   // first call of this thread: take the slow path
  kManaged = 1,   // program thread with an arena in the managed space
  kInternal = 2,  // inside Tidepool: internal heap, mappings straight from the kernel
  kLibc = 3,      // Tidepool is not managing this process
};

// initial-exec: reading it is one load off the thread pointer and can never allocate.
extern __thread ThreadMode t_thread_mode __attribute__((tls_model("initial-exec")));

/// Nests. Threads started inside get their TLS blocks from the internal heap too.
class InternalScope {
 public:
  InternalScope() : saved_(t_thread_mode) { t_thread_mode = ThreadMode::kInternal; }
  ~InternalScope() { t_thread_mode = saved_; }
  InternalScope(const InternalScope&) = delete;
  InternalScope& operator=(const InternalScope&) = delete;

 private:
  ThreadMode saved_;
};

}  // namespace tidepool
