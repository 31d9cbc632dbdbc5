// SPDX-License-Identifier: Apache-2.0
// The heat map of a process: by ranges of addresses, where its managed memory lies and how much it
// is used, as far as the runtime knows. It lies behind the statistics page in the same memfd, in a
// fixed layout (kHeatMagic changes with it). One thread writes, under a sequence lock; readers are
// other processes, and never hold it up. No allocation. Sizes are bytes, times CLOCK_MONOTONIC.
#pragma once

#include <array>
#include <bit>
#include <span>

#include "runtime/stats/stats_page.h"

namespace tidepool {

inline constexpr uint64_t kHeatMagic = 0x3154414548494454;  // "TDIHEAT1"
inline constexpr size_t kMaxHeatRanges = 512;

enum class HeatPlace : uint8_t { kLocal, kDirect, kFetch, kCompressed, kZero, kLost };
inline constexpr size_t kHeatPlaces = 6;
/// A page's heat is 0 to kMostHeat; from kHot on it is believed to be in use.
inline constexpr uint8_t kMostHeat = 16;
inline constexpr uint8_t kHot = 4;

/// What is known of one page.
struct PageHeat {
  HeatPlace place;
  uint8_t heat;
  Nanoseconds learned;  // when its granule was last looked at; 0: nothing is known of its heat
  bool operator==(const PageHeat&) const = default;
};

/// Pages that have content, in an aligned range of HeatMap::width bytes.
struct HeatRange {
  uint64_t start = 0;  // address
  std::array<uint32_t, kHeatPlaces> places{};
  uint32_t known = 0;  // pages of whose heat something is known; of these:
  uint32_t hot = 0;
  uint32_t hot_far = 0;             // not in local memory
  uint32_t heat = 0;                // sum over all known
  uint64_t oldest = 0, newest = 0;  // nanoseconds: when it was learned; 0 if nothing is known

  uint64_t pages() const {
    uint64_t sum = 0;
    for (const uint32_t pages : places) sum += pages;
    return sum;
  }
  void add(const PageHeat& page, uint32_t count);
  void add(const HeatRange& other);
};

/// The ranges that have content, by ascending addresses. Their width is such that kMaxHeatRanges
/// suffice. Not thread-safe.
class HeatMap {
 public:
  static constexpr Bytes kLeastWidth{16 * kPageSize};

  void clear() {
    width_ = kLeastWidth;
    count_ = 0;
  }
  /// `count` pages from `address` on, all alike. Pages come in ascending order, those that have
  /// content, once each.
  void add(uint64_t address, const PageHeat& page, uint64_t count);
  /// Makes ranges wider until there are no more than `most`, at least 1.
  void fit(size_t most);
  std::span<const HeatRange> ranges() const { return {ranges_.data(), count_}; }
  Bytes width() const { return width_; }

  // Of the pass over all pages that made it.
  Nanoseconds begun, ended;
  Nanoseconds cpu;  // all passes so far have taken

 private:
  friend struct HeatPage;
  void widen();

  Bytes width_ = kLeastWidth;
  size_t count_ = 0;
  std::array<HeatRange, kMaxHeatRanges> ranges_;
};

struct HeatPage {
  StatCounter magic;    // written before the memfd is published
  StatCounter version;  // 0: no map yet; odd: one is being written
  StatCounter begun, ended, cpu, width, count;
  std::array<std::array<StatCounter, sizeof(HeatRange) / sizeof(StatCounter)>, kMaxHeatRanges>
      ranges;

  void write(const HeatMap& map);
  /// A copy of the map, whose numbers are the writer's word, but for their count and the width.
  /// False: there is none yet, or it is being written just now.
  bool read(HeatMap& out) const;
};

}  // namespace tidepool
