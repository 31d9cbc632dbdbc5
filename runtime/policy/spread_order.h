// SPDX-License-Identifier: Apache-2.0
// An order in which to look at many things a few at a time, such that any few that follow one
// another are a fair sample of all: neighbours are mostly used alike. Pure; single-threaded.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/base/debug_check.h"

namespace tidepool {

/// Takes the numbers below a count by steps of the golden section, which leave no large gap between
/// any few of them; each number comes once a round. A round is as long as a Fibonacci number, of
/// which the one before is the golden section and has no factor in common with it; what is not
/// below the count is passed over.
class SpreadOrder {
 public:
  /// The next number below `count`, which is not 0. A round ends with the count that it began with:
  /// what was added since comes in the next, what is gone is left out.
  uint64_t next(uint64_t count) {
    TP_DCHECK_OP(count, >, 0u);
    for (;;) {
      if (left_ == 0) begin(count);
      --left_;
      const uint64_t now = at_;
      at_ += at_ + step_ < size_ ? step_ : step_ - size_;
      if (now < count && now < count_) return now;
    }
  }
  /// Rounds that have begun.
  uint64_t rounds() const { return rounds_; }

 private:
  void begin(uint64_t count) {
    count_ = count;
    size_ = step_ = 1;
    while (size_ < count) size_ += std::exchange(step_, size_);
    left_ = size_;
    at_ = 0;
    ++rounds_;
  }
  uint64_t count_ = 0;
  uint64_t size_ = 0, step_ = 0;  // of two Fibonacci numbers that follow one another
  uint64_t at_ = 0, left_ = 0;    // in this round
  uint64_t rounds_ = 0;
};

}  // namespace tidepool
