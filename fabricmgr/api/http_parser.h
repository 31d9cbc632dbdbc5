// SPDX-License-Identifier: Apache-2.0
// The head of an HTTP/1.1 request, read strictly: whatever two programs could understand in two
// ways (bare line feeds, folded lines, a length given twice, encoded bodies) is refused by name.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <tl/expected.hpp>

#include "fabricmgr/api/http_message.h"

namespace tidepool::api {

struct Head {
  Request request;  // without its body
  size_t body_size = 0;
  enum class Version : uint8_t { k11, k10 } version = Version::k11;
  enum class After : uint8_t { kKeep, kClose } after = After::kKeep;
  enum class Expects : uint8_t { kNothing, kContinue } expects = Expects::kNothing;
};

/// `text` is everything up to and with the empty line.
tl::expected<Head, Refusal> parseHead(std::string_view text, const HttpLimits& limits);

/// "a%20b" as "a b"; false for what is not well-formed, or has control characters in it.
enum class Plus : uint8_t { kIsPlus, kIsSpace };
bool percentDecode(std::string_view text, Plus plus, std::string* out);

}  // namespace tidepool::api
