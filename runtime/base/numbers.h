// SPDX-License-Identifier: Apache-2.0
// Whole numbers out of text, in digits of the C locale. Not by libc's functions (strtoul, atoi,
// sscanf, isdigit): they read the tables of the locale that the program has set, which it has from
// malloc, so that they may be far memory (invariant I2). No allocation; thread-safe.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tidepool {

/// The decimal number at `text` (null-terminated), behind blanks; 0 if there is none. `end`, if
/// given, is set to what follows it, or to `text` if there is none or it is too large.
inline uint64_t numberAt(const char* text, const char** end = nullptr) {
  const char* digits = text;
  while (*digits == ' ' || *digits == '\t' || *digits == '\n') ++digits;
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(digits, digits + strlen(digits), value);
  const bool found = error == std::errc();
  if (end != nullptr) *end = found ? stop : text;
  return found ? value : 0;
}

/// The number that the whole of `text` is, and nothing besides its digits.
inline std::optional<uint64_t> wholeNumber(std::string_view text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace tidepool
