// SPDX-License-Identifier: Apache-2.0
// TextBuffer: bounded appends. Number formatting goes through std::to_chars, which neither
// allocates nor looks at the locale.
#include "runtime/base/text_buffer.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/check.h"

namespace tidepool {
namespace {

constexpr uint64_t kPowersOfTen[] = {1,       10,        100,        1'000,       10'000,
                                     100'000, 1'000'000, 10'000'000, 100'000'000, 1'000'000'000};

}  // namespace

void TextBuffer::append(std::string_view text) {
  // One byte always stays for the NUL.
  const size_t room = memory_.size() - 1 - used_;
  const size_t taken = std::min(room, text.size());
  memcpy(memory_.data() + used_, text.data(), taken);
  used_ += taken;
  memory_[used_] = '\0';
  overflowed_ = overflowed_ || taken < text.size();
}

void TextBuffer::appendNumber(uint64_t value) {
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  append(std::string_view(digits, static_cast<size_t>(end.ptr - digits)));
}

void TextBuffer::appendFixed(double value, int decimals) {
  TP_CHECK_OP(decimals, <, 10);
  if (!(value > 0)) value = 0;
  value = std::min(value, 1e18);
  const uint64_t scale = kPowersOfTen[decimals];
  uint64_t whole = static_cast<uint64_t>(value);
  uint64_t part = static_cast<uint64_t>(
      (value - static_cast<double>(whole)) * static_cast<double>(scale) + 0.5);
  if (part >= scale) {
    ++whole;
    part -= scale;
  }
  appendNumber(whole);
  if (decimals == 0) return;
  append('.');
  for (uint64_t digit = scale / 10; digit > 0; digit /= 10) {
    append(static_cast<char>('0' + part / digit % 10));
  }
}

void TextBuffer::appendDouble(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  append(std::string_view(digits, static_cast<size_t>(end.ptr - digits)));
}

void TextBuffer::appendSize(Bytes size) {
  constexpr std::string_view kUnits = "KMGTPE";
  if (size.value() < kKiB) return appendNumber(size.value());
  double scaled = static_cast<double>(size.value()) / kKiB;
  size_t unit = 0;
  // 999.5 rounds to four digits: go up one unit before that, not at 1024.
  while (scaled >= 999.5 && unit + 1 < kUnits.size()) {
    scaled /= kKiB;
    ++unit;
  }
  appendFixed(scaled, scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0);
  append(kUnits[unit]);
}

void TextBuffer::pad(size_t used, size_t width) {
  for (; used < width; ++used) append(' ');
}

void TextBuffer::appendLeft(std::string_view text, size_t width) {
  append(text);
  pad(text.size(), width);
}

void TextBuffer::appendRight(std::string_view text, size_t width) {
  pad(text.size(), width);
  append(text);
}

}  // namespace tidepool
