// SPDX-License-Identifier: Apache-2.0
// Quantities as types: byte counts, page and frame numbers, times. All values are immutable and
// trivially copyable; no implicit conversion leads from one kind to another. Units are in the
// names.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace tidepool {

/// A count or distance of one kind (bytes, pages, nanoseconds): can be added, scaled and compared.
template <typename Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity operator+(Quantity other) const { return Quantity(value_ + other.value_); }
  constexpr Quantity operator-(Quantity other) const { return Quantity(value_ - other.value_); }
  constexpr Quantity& operator+=(Quantity other) { return *this = *this + other; }
  constexpr Quantity& operator-=(Quantity other) { return *this = *this - other; }
  constexpr Quantity operator*(uint64_t factor) const { return Quantity(value_ * factor); }
  constexpr Quantity operator/(uint64_t divisor) const { return Quantity(value_ / divisor); }
  constexpr uint64_t operator/(Quantity other) const { return value_ / other.value_; }

 private:
  uint64_t value_ = 0;
};

using Bytes = Quantity<struct BytesTag>;
using PageCount = Quantity<struct PageCountTag>;
using Nanoseconds = Quantity<struct NanosecondsTag>;

/// A position in a sequence of pages, granules or frames: offset by a plain count, never added to
/// another position.
template <typename Tag>
class Ordinal {
 public:
  constexpr Ordinal() = default;
  constexpr explicit Ordinal(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr auto operator<=>(const Ordinal&) const = default;
  constexpr Ordinal operator+(uint64_t distance) const { return Ordinal(value_ + distance); }
  constexpr Ordinal operator-(uint64_t distance) const { return Ordinal(value_ - distance); }
  constexpr uint64_t operator-(Ordinal other) const { return value_ - other.value_; }
  constexpr Ordinal& operator++() {
    ++value_;
    return *this;
  }

 private:
  uint64_t value_ = 0;
};

/// Page of the managed space, counted from its base.
using PageIndex = Ordinal<struct PageIndexTag>;
/// 2 MiB granule of the managed space, counted from its base.
using GranuleIndex = Ordinal<struct GranuleIndexTag>;
/// Page-sized place in one tier, counted from the tier's start.
using FrameIndex = Ordinal<struct FrameIndexTag>;
/// Fencing number of a region: a memory server refuses requests that carry an older one.
using Epoch = Ordinal<struct EpochTag>;
using NodeId = Ordinal<struct NodeIdTag>;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kTiB = 1024 * kGiB;

inline constexpr uint64_t kPageShift = 12;
inline constexpr uint64_t kPageSize = 1ull << kPageShift;
inline constexpr uint64_t kGranuleShift = 21;
inline constexpr uint64_t kGranuleSize = 1ull << kGranuleShift;
inline constexpr uint64_t kPagesPerGranule = kGranuleSize / kPageSize;

constexpr uint64_t roundUp(uint64_t value, uint64_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}
constexpr uint64_t roundDown(uint64_t value, uint64_t power_of_two) {
  return value & ~(power_of_two - 1);
}
constexpr Bytes toBytes(PageCount pages) { return Bytes(pages.value() << kPageShift); }
/// Pages needed to hold `bytes`.
constexpr PageCount toPages(Bytes bytes) {
  return PageCount((bytes.value() + kPageSize - 1) >> kPageShift);
}
constexpr GranuleIndex granuleOf(PageIndex page) {
  return GranuleIndex(page.value() / kPagesPerGranule);
}
constexpr PageIndex firstPage(GranuleIndex granule) {
  return PageIndex(granule.value() * kPagesPerGranule);
}

}  // namespace tidepool
