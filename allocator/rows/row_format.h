// SPDX-License-Identifier: Apache-2.0
// What one row of an embedding table looks like in memory: its elements, then (int8) the scale they
// are multiplied by, then the optimizer's state for the row. The same bytes in every tier and in
// checkpoints; little-endian. Plain values; sizes in bytes.
#pragma once

#include <cstdint>

#include "runtime/base/units.h"

namespace tidepool {

/// The type of a row's elements. kInt8: signed, each times the row's own float32 scale.
enum class ElementType : uint8_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kInt8 = 3 };
inline constexpr unsigned kElementTypes = 4;

/// How sparse gradients are applied. State is float32 whatever the elements are.
enum class Optimizer : uint8_t {
  kSgd = 0,             // no state
  kMomentum = 1,        // one velocity an element
  kAdagrad = 2,         // one sum of squares an element
  kRowwiseAdagrad = 3,  // one mean of squares a row
  kAdam = 4,            // two moments an element
};
inline constexpr unsigned kOptimizers = 5;

struct RowFormat {
  ElementType type = ElementType::kFloat32;
  Optimizer optimizer = Optimizer::kSgd;
  uint32_t dim = 0;  // elements a row, 1..kMaxDim

  static constexpr uint32_t kMaxDim = 4096;
  /// Rows begin at multiples of this, so that four-byte fields are aligned and a row of a
  /// power-of-two size does not cross more cache lines than it must.
  static constexpr uint32_t kAlignment = 16;

  constexpr uint32_t elementBytes() const {
    if (type == ElementType::kFloat32) return 4;
    return type == ElementType::kInt8 ? 1 : 2;
  }
  /// Where int8 rows have their scale. Four-byte aligned.
  constexpr uint32_t scaleOffset() const { return (dim * elementBytes() + 3) & ~3u; }
  /// Elements and scale: what a lookup reads.
  constexpr uint32_t weightBytes() const {
    return scaleOffset() + (type == ElementType::kInt8 ? 4 : 0);
  }
  constexpr uint32_t stateOffset() const { return weightBytes(); }
  constexpr uint32_t stateFloats() const {
    switch (optimizer) {
      case Optimizer::kSgd:
        return 0;
      case Optimizer::kMomentum:
      case Optimizer::kAdagrad:
        return dim;
      case Optimizer::kRowwiseAdagrad:
        return 1;
      case Optimizer::kAdam:
        return 2 * dim;
    }
    return 0;
  }
  constexpr uint32_t rowBytes() const { return stateOffset() + 4 * stateFloats(); }
  /// From one row to the next.
  constexpr uint32_t stride() const { return (rowBytes() + kAlignment - 1) & ~(kAlignment - 1); }

  bool operator==(const RowFormat&) const = default;
};

}  // namespace tidepool
