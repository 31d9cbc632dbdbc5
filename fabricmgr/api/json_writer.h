// SPDX-License-Identifier: Apache-2.0
// Writes JSON into a string, in the order of the calls: no tree in between, so that a list of ten
// thousand regions costs what its text costs. Not thread-safe. Nesting is the caller's to keep
// right.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool::api {

class JsonWriter {
 public:
  JsonWriter& beginObject() { return open('{'); }
  JsonWriter& beginObject(std::string_view name) { return key(name).open('{'); }
  JsonWriter& endObject() { return close('}'); }
  JsonWriter& beginList(std::string_view name) { return key(name).open('['); }
  JsonWriter& endList() { return close(']'); }

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  template <std::unsigned_integral N>
  requires(!std::same_as<N, bool>) JsonWriter& value(N number) {
    comma();
    out_ += std::to_string(number);
    return *this;
  }
  JsonWriter& value(std::same_as<bool> auto truth) {
    comma();
    out_ += truth ? "true" : "false";
    return *this;
  }
  JsonWriter& field(std::string_view name, const auto& what) { return key(name).value(what); }
  JsonWriter& key(std::string_view name);

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }
  void reserve(size_t bytes) { out_.reserve(bytes); }

 private:
  void comma() {
    if (comma_) out_ += ',';
    comma_ = true;
  }
  JsonWriter& open(char bracket) {
    comma();
    out_ += bracket;
    comma_ = false;
    return *this;
  }
  JsonWriter& close(char bracket) {
    out_ += bracket;
    comma_ = true;
    return *this;
  }
  void quote(std::string_view text);

  std::string out_;
  bool comma_ = false;  // something stands before, in this object or list
};

}  // namespace tidepool::api
