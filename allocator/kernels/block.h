// SPDX-License-Identifier: Apache-2.0
// What kernels are written in: blocks of 16 floats, whatever the registers' width, so that the
// order of every sum is the same everywhere. Each block_*.h has a struct of these operations;
// kernels are templates over it. The files compiled for an instruction set must not emit functions
// that others could link to: what they call is here, has internal linkage, and is no inline
// function of others.
#pragma once

#include <cstdint>

#include "allocator/rows/row_format.h"

#define TP_KERNEL [[gnu::always_inline]] static inline

namespace tidepool {
namespace {

constexpr uint32_t kBlock = 16;

/// How much of a block there is: all of it, or its first `count` elements, 1..15. What is beyond is
/// loaded as zero and not stored.
struct Whole {};
struct Part {
  uint32_t count;
};

TP_KERNEL constexpr uint32_t countOf(Whole) { return kBlock; }
TP_KERNEL constexpr uint32_t countOf(Part part) { return part.count; }

constexpr uint32_t kNotANumber = 0x7fc00000;  // what every result that is not a number is made into
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kMagnitude = 0x7fffffff;

// A row's layout, as RowFormat's functions have it (checked below).
constexpr uint32_t elementBytes(ElementType type) {
  if (type == ElementType::kFloat32) return 4;
  return type == ElementType::kInt8 ? 1 : 2;
}
template <ElementType T>
TP_KERNEL constexpr uint32_t scaleOffset(uint32_t dim) {
  return (dim * elementBytes(T) + 3) & ~3u;
}
template <ElementType T>
TP_KERNEL constexpr uint32_t weightBytes(uint32_t dim) {
  return scaleOffset<T>(dim) + (T == ElementType::kInt8 ? 4 : 0);
}
template <ElementType T>
constexpr bool layoutAgrees() {
  for (uint32_t dim = 1; dim <= 40; ++dim) {
    const RowFormat format{T, Optimizer::kAdam, dim};
    if (format.scaleOffset() != scaleOffset<T>(dim)) return false;
    if (format.stateOffset() != weightBytes<T>(dim)) return false;
    if (format.weightBytes() != weightBytes<T>(dim)) return false;
    if (format.stateFloats() != 2 * dim) return false;  // in the order: first moments, second ones
  }
  return true;
}
static_assert(layoutAgrees<ElementType::kFloat32>() && layoutAgrees<ElementType::kFloat16>());
static_assert(layoutAgrees<ElementType::kBfloat16>() && layoutAgrees<ElementType::kInt8>());

}  // namespace
}  // namespace tidepool
