// SPDX-License-Identifier: Apache-2.0
// What a fault costs its thread beside the time in which the page is brought in: the kernel's part
// at either end, and until a processor runs the woken thread. It cannot be seen from outside the
// thread. But the time from the answer to the same thread's next fault is that and what the program
// did in between, which is next to nothing where two faults follow each other at once. So a low
// quantile of many such times is taken (found by steps up and down: Robbins and Monro, 1951). Pure;
// not thread-safe: one owner. Allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

class FaultCost {
 public:
  static constexpr Nanoseconds kGuess{8'000}, kLeast{1'000}, kMost{100'000};

  /// A fault of this thread was heard of (0: of several, or it is not known whose).
  void heard(int thread, Nanoseconds now) {
    if (thread != 0 && thread == thread_ && answers_ == 1) take(now - answered_);
    thread_ = thread;
    answers_ = 0;
  }
  /// A page that was waited for is there.
  void answered(Nanoseconds now) {
    answered_ = now;
    ++answers_;
  }
  Nanoseconds value() const { return cost_; }

 private:
  // With steps of these sizes it settles where one time in seventeen is shorter.
  static constexpr uint64_t kDown = 16, kUp = 256;
  void take(Nanoseconds sample) {
    const Nanoseconds next = sample < cost_ ? cost_ - cost_ / kDown : cost_ + cost_ / kUp;
    cost_ = std::clamp(next, kLeast, kMost);
  }

  Nanoseconds cost_ = kGuess;
  int thread_ = 0;
  uint64_t answers_ = 0;  // since the last fault was heard of
  Nanoseconds answered_;
};

}  // namespace tidepool
