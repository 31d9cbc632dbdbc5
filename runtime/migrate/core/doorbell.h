// SPDX-License-Identifier: Apache-2.0
// A doorbell between service threads: an eventfd that poll(2) can wait for along with other
// descriptors. raise() from any thread; clear() by the one that waits.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/raw_calls.h"
#include "runtime/base/result.h"
#include "runtime/base/unique_fd.h"

namespace tidepool {

class Doorbell {
 public:
  /// Nobody rings or waits. Once more in a child of fork(), whose bell is silent whatever the
  /// parent's was.
  Status open() {
    rung_.store(false, std::memory_order_relaxed);
    fd_.reset(raw::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd_.valid()) return failErrno(ErrorCode::kNoMemory, "cannot create an eventfd");
    fd_.keep();
    return {};
  }
  /// Wakes the waiter; cheap when it has been rung already.
  void ring() {
    // acq_rel pairs with clear(): what was written before ring() is seen after clear().
    if (rung_.exchange(true, std::memory_order_acq_rel)) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = raw::write(fd_.get(), &one, sizeof one);
  }
  void clear() {
    // Read first: a ring() in between is then suppressed, but its cause is seen by the caller,
    // who looks after clear(). The other order would lose the next ring.
    uint64_t count;
    [[maybe_unused]] const ssize_t got = raw::read(fd_.get(), &count, sizeof count);
    rung_.exchange(false, std::memory_order_acq_rel);
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::atomic<bool> rung_{false};
};

}  // namespace tidepool
