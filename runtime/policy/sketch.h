// SPDX-License-Identifier: Apache-2.0
// A 4-bit counting sketch: about how often was a key seen lately? Each key lives in one cache line,
// counters saturate at 15 and halve every cooling step. Not thread-safe; borrows the caller's
// memory, never allocates. Sizes are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool {

/// Count-min with conservative update: never estimates below the true (cooled, saturated) count;
/// above it only where all three counters of a key are shared with busier keys.
class CountSketch {
 public:
  static constexpr uint32_t kMaxCount = 15;

  /// Memory for about `keys` distinct keys: two bytes each, at least a cache line.
  static Bytes memoryFor(uint64_t keys);

  /// `memory` is zero-filled, 64-byte aligned, a power of two of bytes, and outlives the sketch.
  explicit CountSketch(std::span<std::byte> memory);

  /// Adds `weight` sightings of `key`; returns the new estimate.
  uint32_t add(uint64_t key, uint32_t weight);
  uint32_t estimate(uint64_t key) const;

  /// Halves every counter: O(1), each cache line catches up when it is next added to.
  void cool() { ++epoch_; }
  uint32_t epoch() const { return epoch_; }

  /// Moves to larger memory (same demands as the constructor's, not smaller than the present one).
  /// Every estimate stays what it was. The former memory is the caller's again.
  void grow(std::span<std::byte> memory);

  Bytes memoryUsed() const { return Bytes(block_count_ * sizeof(Block)); }

 private:
  // 3 rows of 40 counters: row r is words 5r..5r+4. The line's last word says up to which epoch
  // its counters are halved, which is what makes cool() free.
  static constexpr uint32_t kRows = 3;
  static constexpr uint32_t kWordsPerRow = 5;
  static constexpr uint32_t kCountersPerRow = kWordsPerRow * 8;
  struct alignas(64) Block {
    uint32_t words[kRows * kWordsPerRow];
    uint32_t epoch;
  };
  static_assert(sizeof(Block) == 64);
  struct Slots {
    uint64_t block;
    uint32_t index[kRows];  // counter within its row
  };

  Slots slotsOf(uint64_t key) const;
  static uint32_t counter(const Block& block, uint32_t row, uint32_t index);
  static void catchUp(Block& block, uint32_t epoch);

  Block* blocks_;
  uint64_t block_count_;
  uint32_t epoch_ = 0;
};

}  // namespace tidepool
