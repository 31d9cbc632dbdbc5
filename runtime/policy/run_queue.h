// SPDX-License-Identifier: Apache-2.0
// A short queue of page ranges that the program gave advice on, for a service thread to take piece
// by piece. Ranges that follow one another become one. What does not fit is turned away: advice may
// be ignored. Not thread-safe: one owner. No allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "runtime/base/check.h"
#include "runtime/policy/stream.h"

namespace tidepool {

class RunQueue {
 public:
  static constexpr size_t kMost = 64;

  bool empty() const { return count_ == 0; }

  /// False when the queue is full.
  bool push(PageRun run) {
    if (run.count.value() == 0) return true;
    if (count_ > 0) {
      PageRun& last = at(count_ - 1);
      if (last.first + last.count.value() == run.first) {
        last.count += run.count;
        return true;
      }
    }
    if (count_ == kMost) return false;
    at(count_++) = run;
    return true;
  }

  /// The next piece: of at most `limit` pages, within one granule. count is 0 when there is none.
  PageRun front(PageCount limit) {
    if (empty()) return {};
    const PageRun& run = at(0);
    const uint64_t to_end = kPagesPerGranule - run.first.value() % kPagesPerGranule;
    return {run.first, PageCount(std::min({run.count.value(), limit.value(), to_end}))};
  }
  /// Takes the piece that front() gave off the queue.
  void drop(PageRun piece) {
    TP_CHECK_OP(count_, >, 0u);
    PageRun& run = at(0);
    TP_CHECK(piece.first == run.first && piece.count <= run.count);
    run = {run.first + piece.count.value(), run.count - piece.count};
    if (run.count.value() > 0) return;
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  void clear() { count_ = 0; }

 private:
  PageRun& at(size_t i) { return runs_[(first_ + i) % kMost]; }

  std::array<PageRun, kMost> runs_{};
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace tidepool
