// SPDX-License-Identifier: Apache-2.0
// Appends text and numbers to memory that the caller lends, always NUL-terminated. No heap, no
// locale, no errno: usable in exit handlers and service threads. Not thread-safe. What does not
// fit is dropped and remembered: check overflowed() once, at the end.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "runtime/base/units.h"

namespace tidepool {

class TextBuffer {
 public:
  /// Borrows `memory` (at least one byte) for as long as this object lives.
  explicit TextBuffer(std::span<char> memory) : memory_(memory) { memory_[0] = '\0'; }

  void append(std::string_view text);
  void append(char character) { append(std::string_view(&character, 1)); }
  void appendNumber(uint64_t value);
  /// `value` with exactly `decimals` (0 to 9) digits after the point; not-a-number and negative
  /// values are written as 0, values beyond 1e18 are cut to it.
  void appendFixed(double value, int decimals);
  /// The shortest form that parses back to the same double.
  void appendDouble(double value);
  /// For people: "0", "512", "4.00K", "245M", "1.50G": three significant digits.
  void appendSize(Bytes size);
  /// `text` in a column of `width`; longer text pushes the column out.
  void appendLeft(std::string_view text, size_t width);
  void appendRight(std::string_view text, size_t width);

  std::string_view view() const { return {memory_.data(), used_}; }
  const char* c_str() const { return memory_.data(); }
  bool overflowed() const { return overflowed_; }

 private:
  void pad(size_t used, size_t width);

  std::span<char> memory_;
  size_t used_ = 0;
  bool overflowed_ = false;
};

/// A TextBuffer with its memory inside, for one short line.
template <size_t kCapacity>
class ShortText : public TextBuffer {
 public:
  ShortText() : TextBuffer(std::span<char>(storage_, kCapacity)) {}
  ShortText(const ShortText&) = delete;
  ShortText& operator=(const ShortText&) = delete;

 private:
  char storage_[kCapacity];
};

/// A size for people, as by appendSize().
struct SizeText : ShortText<24> {
  explicit SizeText(Bytes size) { appendSize(size); }
};

}  // namespace tidepool
