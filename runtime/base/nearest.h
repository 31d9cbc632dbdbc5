// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": the known word nearest to a mistyped one. Pure functions, no heap.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace tidepool {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
/// Words are compared by their first 64 characters.
size_t editDistance(std::string_view left, std::string_view right);

/// The nearest of `known`, the earliest on a tie; empty if `known` is.
std::string_view nearestWord(std::string_view word, std::span<const std::string_view> known);

}  // namespace tidepool
