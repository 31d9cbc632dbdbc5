// SPDX-License-Identifier: Apache-2.0
// Counts how often rows were missed lately, in four-bit counters shared by hash (count-min with
// conservative update). One cache line a row. Aged by halving, a few lines at a time. Not
// thread-safe. Borrows its memory. Units: misses.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool {

/// Spreads row numbers over all 64 bits; the same in every process.
constexpr uint64_t rowHash(uint64_t row, uint64_t seed) {
  uint64_t h = (row + seed) * 0x9e3779b97f4a7c15ull;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
  return h ^ h >> 32;
}

class RowSketch {
 public:
  static constexpr uint32_t kMost = 15;
  static constexpr uint64_t kLine = 64;  // bytes

  /// `memory` is zero-filled and outlives the sketch; resize() says how much of it is in use.
  explicit RowSketch(std::span<uint8_t> memory) : memory_(memory) {}

  /// Uses this many bytes from now on, rounded down to lines, at least one. Counts are kept as far
  /// as they can be: lines hold ranges of hashes, so they are spread or merged in order.
  void resize(Bytes bytes);
  /// Counts a miss. Returns the row's count, this one included; it errs high, never low.
  uint32_t add(uint64_t hash);
  uint32_t estimate(uint64_t hash) const;
  /// Asks for what add() and estimate() are going to look at.
  void prefetch(uint64_t hash) const { __builtin_prefetch(lineOf(hash), 1); }
  /// The row's count is at least `count` from now on.
  void raise(uint64_t hash, uint32_t count);
  /// Halves the counts of the next line in turn.
  void halveOne();

  uint64_t lines() const { return lines_; }
  Bytes bytes() const { return Bytes(lines_ * kLine); }
  /// Memory beyond those: zeros.
  std::span<uint8_t> unused() const { return memory_.subspan(lines_ * kLine); }

 private:
  static constexpr unsigned kHashes = 3;
  static constexpr uint32_t kCounters = 2 * kLine;
  uint8_t* lineOf(uint64_t hash) const;
  static uint32_t counterOf(uint64_t hash, unsigned i) { return hash >> (7 * i) & (kCounters - 1); }
  static uint32_t get(const uint8_t* line, uint32_t counter) {
    return line[counter / 2] >> (counter % 2 * 4) & kMost;
  }
  static void set(uint8_t* line, uint32_t counter, uint32_t value);

  std::span<uint8_t> memory_;
  uint64_t lines_ = 0;
  uint64_t hand_ = 0;
};

}  // namespace tidepool
