// SPDX-License-Identifier: Apache-2.0
// Which arena a thread shares with whom: the slot with the fewest living threads, the first among
// equals. So two threads share one only when there are more threads than slots, and arenas that
// nobody needs are never made. Not thread-safe: its owner holds a lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/check.h"

namespace tidepool {

class ArenaSlots {
 public:
  static constexpr unsigned kMost = 256;

  void setCount(unsigned count) { count_ = std::clamp(count, 1u, kMost); }

  /// The slot of a thread that starts.
  unsigned join() {
    const auto least = std::min_element(threads_.begin(), threads_.begin() + count_);
    ++*least;
    return static_cast<unsigned>(least - threads_.begin());
  }

  /// A thread that joined `slot` ends.
  void leave(unsigned slot) {
    TP_CHECK_OP(threads_[slot], >, 0u);
    --threads_[slot];
  }

  /// After fork(), in the child: of all threads only one is left.
  void keepOnly(unsigned slot) {
    threads_.fill(0);
    threads_[slot] = 1;
  }

 private:
  std::array<uint32_t, kMost> threads_{};
  unsigned count_ = 1;
};

}  // namespace tidepool
