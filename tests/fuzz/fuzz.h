// SPDX-License-Identifier: Apache-2.0
// What every fuzzing program defines, and what they share. The programs feed bytes that libFuzzer
// makes up to the code that reads what others have sent or written. One thread unless a program
// says otherwise; a check that fails aborts, and libFuzzer keeps the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/check.h"

namespace tidepool::fuzz {

/// Real messages, made by the code that writes them: what the search starts from.
std::vector<std::string> seeds();
/// Reads `input` as the code under test would.
void tryInput(std::string_view input);

inline std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string textOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
/// Encodes `value` by the code under test, in kSize bytes.
template <size_t kSize, typename Value>
std::string encoded(const Value& value) {
  std::string text(kSize, '\0');
  encode(value, std::span<std::byte, kSize>(reinterpret_cast<std::byte*>(text.data()), kSize));
  return text;
}

/// Takes one byte off the front; 0 where there is none.
inline uint8_t takeByte(std::string_view* input) {
  if (input->empty()) return 0;
  const auto byte = static_cast<uint8_t>(input->front());
  input->remove_prefix(1);
  return byte;
}

/// A file of this process's own, in memory where there is such a place. Gone at the end, but for
/// what its name was lengthened by.
std::string scratchFile(const char* name);
void write(const std::string& path, std::string_view bytes);

}  // namespace tidepool::fuzz
