// SPDX-License-Identifier: Apache-2.0
// Initializer: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a function of a counter; normal
// values by Box and Muller's method (1958), in double precision.
#include "allocator/table/initializer.h"

#include <algorithm>
#include <cmath>

namespace tidepool {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

/// In [0, 1), a multiple of 2^-53.
double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

void Initializer::fill(uint64_t id, std::span<float> elements) const {
  if (kind == Kind::kZero) {
    std::fill(elements.begin(), elements.end(), 0.0f);
    return;
  }
  const uint64_t start = mix(mix(seed + kGolden) ^ id);
  for (size_t i = 0; i < elements.size(); ++i) {
    if (kind == Kind::kUniform) {
      const double value = unit(mix(start + (i + 1) * kGolden));
      elements[i] = static_cast<float>(first + value * (static_cast<double>(second) - first));
      continue;
    }
    const double radius = unit(mix(start + (2 * i + 1) * kGolden));
    const double angle = unit(mix(start + (2 * i + 2) * kGolden));
    const double normal = std::sqrt(-2 * std::log(1 - radius)) * std::cos(2 * M_PI * angle);
    elements[i] = static_cast<float>(first + second * normal);
  }
}

}  // namespace tidepool
