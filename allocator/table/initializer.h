// SPDX-License-Identifier: Apache-2.0
// The values that a row begins with: a function of the table's seed and the row's id alone, so that
// they are the same in whatever order, tier, thread or process rows come into being. Pure.
#pragma once

#include <cstdint>
#include <span>

namespace tidepool {

struct Initializer {
  enum class Kind : uint8_t { kZero = 0, kUniform = 1, kNormal = 2 };
  Kind kind = Kind::kZero;
  float first = 0;   // uniform: least value; normal: mean
  float second = 0;  // uniform: the values lie below it; normal: standard deviation
  uint64_t seed = 0;

  /// The elements of the row with this id.
  void fill(uint64_t id, std::span<float> elements) const;
  /// Whether the rows of all ids begin alike.
  bool sameForAll() const {
    return kind == Kind::kZero || (kind == Kind::kUniform && first == second);
  }
  bool operator==(const Initializer&) const = default;
};

}  // namespace tidepool
