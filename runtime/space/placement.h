// SPDX-License-Identifier: Apache-2.0
// Where the pages of a granule are to be, if the program has said so: local, or in one far tier as
// long as that has room. By default they are wherever the policy puts them. One byte a granule,
// paid for where it was ever set. Thread-safe: relaxed atomics, for a placement orders nothing.
#pragma once

#include <atomic>

#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/base/units.h"

namespace tidepool {

class Placement {
 public:
  constexpr Placement() = default;
  static constexpr Placement local() { return Placement(kLocal); }
  /// `tier` as page words number them, from 1 on.
  static constexpr Placement in(uint8_t tier) { return Placement(tier); }
  static constexpr Placement fromRaw(uint8_t raw) { return Placement(raw); }

  constexpr bool isFree() const { return raw_ == kFree; }
  constexpr bool isLocal() const { return raw_ == kLocal; }
  /// The far tier it names; 0 if it names none.
  constexpr uint8_t tier() const { return raw_ == kLocal ? 0 : raw_; }
  constexpr uint8_t raw() const { return raw_; }
  constexpr bool operator==(const Placement&) const = default;

 private:
  static constexpr uint8_t kFree = 0, kLocal = 255;
  constexpr explicit Placement(uint8_t raw) : raw_(raw) {}
  uint8_t raw_ = kFree;
};

class Placements {
 public:
  Placements() = default;
  /// `granules` zero bytes.
  explicit Placements(Mapping granules) : granules_(std::move(granules)) {}

  Placement of(GranuleIndex granule) const {
    // Nothing was ever placed: the usual case, which is not to touch the table.
    if (!any_.load(std::memory_order_relaxed)) return Placement();
    return Placement::fromRaw(entry(granule).load(std::memory_order_relaxed));
  }
  void set(GranuleIndex granule, Placement placement) {
    if (!placement.isFree()) any_.store(true, std::memory_order_relaxed);
    if (of(granule) != placement) entry(granule).store(placement.raw(), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint8_t>& entry(GranuleIndex granule) const {
    TP_DCHECK_OP(granule.value(), <, granules_.size().value());
    return reinterpret_cast<std::atomic<uint8_t>*>(granules_.data())[granule.value()];
  }

  Mapping granules_;
  std::atomic<bool> any_{false};
};

}  // namespace tidepool
