// SPDX-License-Identifier: Apache-2.0
// Which writes must wait for reads before them: a device may let a write overtake a read, and the
// read would then see it. Pure code; one owner thread; allocates when it is made. Pieces are
// numbered in the order of posting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/transport/page_lane.h"

namespace tidepool::verbs {

class ReadFence {
 public:
  /// A write rather waits than be compared with more pieces than this.
  static constexpr uint64_t kMostCompared = 64;

  /// At most `depth` pieces are under way at a time, a power of two.
  explicit ReadFence(uint32_t depth) : reads_(depth), mask_(depth - 1) {}

  /// Piece `index` is the next to be posted; those from `first` on are under way. True: it must
  /// wait until all reads before it are over, and so does what is posted after it.
  bool holds(uint64_t first, uint64_t index, const LanePiece& piece) {
    const Run run = {piece.offset, piece.offset + piece.bytes};
    const bool reads = piece.direction == LanePiece::Direction::kRead;
    reads_[index & mask_] = reads ? run : Run();
    if (reads) {
      reads_end_ = index + 1;
      return false;
    }
    const uint64_t from = std::max(first, fenced_);
    if (reads_end_ <= from) return false;
    if (index - from <= kMostCompared && !meets(run, from, index)) return false;
    fenced_ = index;
    return true;
  }

 private:
  /// Bytes of the region; none for a write.
  struct Run {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  bool meets(const Run& write, uint64_t from, uint64_t to) const {
    for (uint64_t index = from; index != to; ++index) {
      const Run& read = reads_[index & mask_];
      if (read.begin < write.end && write.begin < read.end) return true;
    }
    return false;
  }

  std::vector<Run> reads_;
  const uint64_t mask_;
  uint64_t reads_end_ = 0;  // behind the last read
  uint64_t fenced_ = 0;     // the last write that waits
};

}  // namespace tidepool::verbs
