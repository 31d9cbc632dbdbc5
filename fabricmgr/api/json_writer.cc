// SPDX-License-Identifier: Apache-2.0
// JsonWriter's texts: quoted and escaped.
#include "fabricmgr/api/json_writer.h"

namespace tidepool::api {

JsonWriter& JsonWriter::key(std::string_view name) {
  comma();
  quote(name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  comma();
  quote(text);
  return *this;
}

void JsonWriter::quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += "\\u00";
      out_ += kHex[(c >> 4) & 1];
      out_ += kHex[c & 15];
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

}  // namespace tidepool::api
