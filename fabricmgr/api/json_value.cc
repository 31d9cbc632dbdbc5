// SPDX-License-Identifier: Apache-2.0
// A strict reader on top of nlohmann-json's events, which check the syntax and the UTF-8.
#include "fabricmgr/api/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tidepool::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostFields = 64;  // names are compared with all before them

bool hasControl(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

/// Takes the events, builds the value; false from any of them ends the reading.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonValue result;
  InputFault fault;

  bool null() override { return put({}); }
  bool boolean(bool value) override {
    JsonValue one;
    one.kind = Kind::kBoolean;
    one.boolean = value;
    return put(std::move(one));
  }
  bool number_integer(number_integer_t value) override { return notWhole(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    JsonValue one;
    one.kind = Kind::kNumber;
    one.number = value;
    return put(std::move(one));
  }
  bool number_float(number_float_t, const string_t& text) override { return notWhole(text); }
  bool string(string_t& value) override {
    if (hasControl(value)) return refuse("has a control character in it");
    JsonValue one;
    one.kind = Kind::kString;
    one.string = std::move(value);
    return put(std::move(one));
  }
  bool binary(binary_t&) override { return refuse("is binary"); }
  bool start_object(size_t) override { return open(Kind::kObject); }
  bool start_array(size_t) override { return open(Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    JsonValue& object = *open_.back();
    names_.back() = name;
    if (hasControl(name)) return refuse("has a control character in its name");
    if (object.find(name) != nullptr) return refuse("is given twice");
    if (object.members.size() == kMostFields) return refuse("is one field too many for one object");
    object.members.push_back({name, {}});
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    const std::string_view text = error.what();  // "[json.exception...] parse error at ..."
    const size_t end = text.find("] ");
    fault = {"", fmt::format("the body is not JSON: {}",
                             text.substr(end == std::string_view::npos ? 0 : end + 2))};
    return false;
  }

 private:
  std::string path() const {
    std::string text;
    for (const std::string& name : names_) {
      if (!name.empty()) text += (text.empty() ? "" : ".") + name;
    }
    return text;
  }
  bool refuse(std::string_view why) {
    const std::string where = path();
    fault = {where, where.empty() ? fmt::format("the body {}", why)
                                  : fmt::format("field '{}' {}", where, why)};
    return false;
  }
  bool notWhole(const std::string& text) {
    return refuse(fmt::format("is {}: it has to be a whole number from 0 to {}", text.substr(0, 40),
                              UINT64_MAX));
  }
  /// Where the next value goes.
  JsonValue& place() {
    if (open_.empty()) return result;
    JsonValue& parent = *open_.back();
    if (parent.kind == Kind::kObject) return parent.members.back().value;
    return parent.items.emplace_back();
  }
  bool put(JsonValue value) {
    place() = std::move(value);
    return true;
  }
  bool open(Kind kind) {
    if (open_.size() >= kDeepestJson) {
      return refuse(fmt::format("is nested deeper than {} levels", kDeepestJson));
    }
    JsonValue& value = place();
    value.kind = kind;
    open_.push_back(&value);
    names_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }

  // Pointers stay good: a container does not grow while something inside of it is open.
  std::vector<JsonValue*> open_;
  std::vector<std::string> names_;
};

const JsonValue kNothing;

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

const std::string& JsonValue::text(std::string_view name) const {
  const JsonValue* found = find(name);
  return (found != nullptr ? *found : kNothing).string;
}
uint64_t JsonValue::count(std::string_view name) const {
  const JsonValue* found = find(name);
  return found != nullptr ? found->number : 0;
}
bool JsonValue::flag(std::string_view name) const {
  const JsonValue* found = find(name);
  return found != nullptr && found->boolean;
}
const std::vector<JsonValue>& JsonValue::list(std::string_view name) const {
  const JsonValue* found = find(name);
  return (found != nullptr ? *found : kNothing).items;
}

std::string_view nameOf(Kind kind) {
  static constexpr std::string_view kNames[] = {"null",   "true or false", "a number",
                                                "a text", "a list",        "an object"};
  return kNames[static_cast<size_t>(kind)];
}

tl::expected<JsonValue, InputFault> parseJson(std::string_view text) {
  Reader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    return tl::unexpected(std::move(reader.fault));
  }
  return std::move(reader.result);
}

}  // namespace tidepool::api
