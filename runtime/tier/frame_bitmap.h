// SPDX-License-Identifier: Apache-2.0
// Which frames of a tier are in use, arranged for finding runs of free ones: one bit a frame, and
// two levels of "this word is full" above, searched next-fit. Works on memory of the caller's,
// zero at first, and touches it only as far as frames are used. Plain data: the caller locks.
// Counts are frames.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

class FrameBitmap {
 public:
  static constexpr uint64_t kWordBits = 64;
  static constexpr uint64_t wordsFor(uint64_t bits) { return (bits + kWordBits - 1) / kWordBits; }
  /// Bits [low, high) of a word, 0 <= low < high <= 64.
  static constexpr uint64_t maskOf(uint64_t low, uint64_t high) {
    const uint64_t upper = high == kWordBits ? ~uint64_t{0} : (uint64_t{1} << high) - 1;
    return upper & (~uint64_t{0} << low);
  }

  static Bytes memoryFor(PageCount capacity);
  FrameBitmap(PageCount capacity, std::byte* memory);
  /// Makes zeroed memory a bitmap without a frame in use.
  void format();

  /// A run of at most `wanted` free frames below `limit`: the first of `enough` or more within a
  /// bounded search from `from` on, and around, else the longest seen; the count is 0 when none is
  /// free.
  struct Found {
    uint64_t first = 0;
    uint64_t count = 0;
    uint64_t stopped = 0;  // where the search ended
  };
  Found find(uint64_t from, uint64_t wanted, uint64_t enough, uint64_t limit) const;
  /// The first run of `wanted` free frames, however long that takes to find; the count is 0 when
  /// there is none.
  Found findWhole(uint64_t wanted) const;

  // `mask` is of word `word` of the lowest level. Bits are all clear before, or all set.
  void set(uint64_t word, uint64_t mask);
  void clear(uint64_t word, uint64_t mask);
  uint64_t word(uint64_t index) const { return levels_[0].data[index]; }
  uint64_t words() const { return levels_[0].words; }

 private:
  struct Level {
    uint64_t* data = nullptr;
    uint64_t words = 0;
  };
  uint64_t nextFree(uint64_t from) const;
  /// The first word of level 0 that is not full, at or after `word`, or the number of words.
  uint64_t nextOpenWord(uint64_t word) const;
  /// The first used frame in [from, limit), or `limit`.
  uint64_t runEnd(uint64_t from, uint64_t limit) const;

  const uint64_t capacity_;
  // Level 0: a set bit is a used frame. Levels 1 and 2: a set bit is a full word one level below.
  Level levels_[3];
};

}  // namespace tidepool
