// SPDX-License-Identifier: Apache-2.0
// JsonWriter's texts: quoted and escaped.
#include "fabricmgr/api/json_writer.h"

namespace tidepool::api {
namespace {

/// The length of the well-formed UTF-8 sequence that `text` begins with; 0: it begins with none.
size_t sequenceAt(std::string_view text) {
  const auto in = [&](size_t at, unsigned least, unsigned most) {
    const unsigned byte = at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
    return byte >= least && byte <= most;
  };
  const auto follow = [&](size_t at) { return in(at, 0x80, 0xbf); };
  if (in(0, 0x00, 0x7f)) return 1;
  if (in(0, 0xc2, 0xdf)) return follow(1) ? 2 : 0;
  // Neither what a shorter sequence says, nor surrogates, nor beyond U+10FFFF.
  if (in(0, 0xe0, 0xe0)) return in(1, 0xa0, 0xbf) && follow(2) ? 3 : 0;
  if (in(0, 0xed, 0xed)) return in(1, 0x80, 0x9f) && follow(2) ? 3 : 0;
  if (in(0, 0xe1, 0xef)) return follow(1) && follow(2) ? 3 : 0;
  if (in(0, 0xf0, 0xf0)) return in(1, 0x90, 0xbf) && follow(2) && follow(3) ? 4 : 0;
  if (in(0, 0xf1, 0xf3)) return follow(1) && follow(2) && follow(3) ? 4 : 0;
  if (in(0, 0xf4, 0xf4)) return in(1, 0x80, 0x8f) && follow(2) && follow(3) ? 4 : 0;
  return 0;
}

}  // namespace

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
  while (!text.empty()) {
    const char c = text.front();
    const size_t size = sequenceAt(text);
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += "\\u00";
      out_ += kHex[(c >> 4) & 1];
      out_ += kHex[c & 15];
    } else if (size == 1) {
      out_ += c;
    } else if (size == 0) {
      out_ += "\\ufffd";  // of a path with any bytes in it, or of a text that was cut
    } else {
      out_ += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  out_ += '"';
}

}  // namespace tidepool::api
