// SPDX-License-Identifier: Apache-2.0
// Writing without a signal. The kernel does not merely refuse a write beyond RLIMIT_FSIZE (ulimit
// -f) or to a pipe that nobody reads: it sends SIGXFSZ or SIGPIPE besides, which end a program that
// knows of no such write. For what Tidepool writes of its own accord, so.
#pragma once

#include "runtime/base/raw_calls.h"

namespace tidepool {

/// Holds these two back from the calling thread for its own life, and takes those that came of what
/// was written meanwhile out of its queue. errno is kept.
class WriteSignalsHeld {
 public:
  WriteSignalsHeld() {
    raw::changeMask(SIG_BLOCK, &kSignals, &mask_);
    raw::call(SYS_rt_sigpending, &pending_, sizeof pending_);
  }
  ~WriteSignalsHeld() {
    const int saved = errno;
    uint64_t now = 0;
    raw::call(SYS_rt_sigpending, &now, sizeof now);
    uint64_t ours = kSignals & now & ~pending_;
    constexpr timespec kAtOnce{};
    while (ours != 0) {
      const long taken = raw::call(SYS_rt_sigtimedwait, &ours, nullptr, &kAtOnce, sizeof ours);
      if (taken <= 0) break;
      ours &= ~(uint64_t{1} << (taken - 1));
    }
    raw::changeMask(SIG_SETMASK, &mask_, nullptr);
    errno = saved;
  }
  WriteSignalsHeld(const WriteSignalsHeld&) = delete;
  WriteSignalsHeld& operator=(const WriteSignalsHeld&) = delete;

 private:
  static constexpr uint64_t kSignals = uint64_t{1} << (SIGXFSZ - 1) | uint64_t{1} << (SIGPIPE - 1);
  uint64_t mask_ = 0, pending_ = 0;
};

}  // namespace tidepool
