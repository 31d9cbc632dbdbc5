// SPDX-License-Identifier: Apache-2.0
// Whether a page that is fetched should keep its far copy, so that it need not be written back when
// it goes again unchanged. Keeping one costs a tracked write if the page is written after all. What
// became of a granule's copies so far decides about its next; scans, which pass through many
// granules once, are judged together. A sixteenth is kept against all experience, to gather more.
// Pure; not thread-safe: one owner. Borrows the caller's memory, never allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.h"

namespace tidepool {

/// How a page came in: by its own fault, or fetched ahead of a scan.
enum class Arrival : uint8_t { kFault, kScan };

class FarCopies {
 public:
  static constexpr uint32_t kExploreEvery = 16;

  /// One byte a granule.
  static Bytes memoryFor(PageCount pages) {
    return Bytes((pages.value() + kPagesPerGranule - 1) / kPagesPerGranule);
  }
  /// `memory` is zero-filled, outlives this, and bounds the granules.
  explicit FarCopies(std::span<std::byte> memory)
      : balance_(reinterpret_cast<int8_t*>(memory.data()), memory.size()) {}

  /// Whether pages of `granule` that come in now should keep their copies.
  bool worthKeeping(GranuleIndex granule, Arrival arrival);
  /// A kept copy saved a write-back, or turned out to be outdated.
  void saved(GranuleIndex granule, Arrival arrival) { learn(granule, arrival, 1); }
  void outdated(GranuleIndex granule, Arrival arrival) { learn(granule, arrival, -1); }

 private:
  static constexpr int kMost = 16;  // experience beyond it is forgotten: programs change phase
  int8_t& balanceOf(GranuleIndex granule, Arrival arrival);
  void learn(GranuleIndex granule, Arrival arrival, int change);

  std::span<int8_t> balance_;
  int8_t scans_ = 1;
  uint32_t asked_ = 0;
};

}  // namespace tidepool
