// SPDX-License-Identifier: Apache-2.0
// Edit distance (optimal string alignment) with three rows on the stack.
#include "runtime/base/nearest.h"

#include <algorithm>
#include <cstdint>

namespace tidepool {
namespace {

constexpr size_t kMaxWord = 64;

}  // namespace

size_t editDistance(std::string_view left, std::string_view right) {
  left = left.substr(0, kMaxWord);
  right = right.substr(0, kMaxWord);
  size_t rows[3][kMaxWord + 1];
  size_t* before = rows[0];    // row i - 2
  size_t* previous = rows[1];  // row i - 1
  size_t* current = rows[2];
  for (size_t j = 0; j <= right.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= left.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t substitution = previous[j - 1] + (left[i - 1] == right[j - 1] ? 0 : 1);
      size_t best = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      const bool swapped =
          i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
      if (swapped) best = std::min(best, before[j - 2] + 1);
      current[j] = best;
    }
    size_t* const oldest = before;
    before = previous;
    previous = current;
    current = oldest;
  }
  return previous[right.size()];
}

std::string_view nearestWord(std::string_view word, std::span<const std::string_view> known) {
  std::string_view nearest;
  size_t least = SIZE_MAX;
  for (const std::string_view candidate : known) {
    const size_t distance = editDistance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace tidepool
