// SPDX-License-Identifier: Apache-2.0
// JSON that came from outside, read strictly: duplicate names, numbers that are not whole or do not
// fit, control characters, ill-formed UTF-8 and deep nesting are refused, by name. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace tidepool::api {

struct JsonMember;

/// Every number of this interface is a whole one from 0 to 2^64-1.
struct JsonValue {
  enum class Kind : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  uint64_t number = 0;
  std::string string;
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;

  const JsonValue* find(std::string_view name) const;
  // Of a checked object: the member's value, or an empty one if it was not given.
  const std::string& text(std::string_view name) const;
  uint64_t count(std::string_view name) const;
  bool flag(std::string_view name) const;
  const std::vector<JsonValue>& list(std::string_view name) const;
};
struct JsonMember {
  std::string name;
  JsonValue value;
};
std::string_view nameOf(JsonValue::Kind kind);

/// What is wrong with the input, and with which field ("constraints.max_devices"; empty: the
/// whole).
struct InputFault {
  std::string field;
  std::string detail;
};

inline constexpr int kDeepestJson = 8;

tl::expected<JsonValue, InputFault> parseJson(std::string_view text);

}  // namespace tidepool::api
