// SPDX-License-Identifier: Apache-2.0
// HTTP requests and answers as plain values, and the limits that a request is held to. Header names
// are lower case; paths and parameters are decoded. Sizes are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidepool::api {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// The value of the first pair named `name`; null if there is none.
inline const std::string* findIn(const Pairs& pairs, std::string_view name) {
  for (const auto& [key, value] : pairs) {
    if (key == name) return &value;
  }
  return nullptr;
}

struct Request {
  std::string method;
  std::string path;
  Pairs query;
  Pairs headers;
  std::string body;

  const std::string* header(std::string_view name) const { return findIn(headers, name); }
  const std::string* parameter(std::string_view name) const { return findIn(query, name); }
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  Pairs headers;
  std::string body;
};

/// Why a request is turned away before it is understood.
struct Refusal {
  int status = 400;
  std::string detail;  // what is wrong, and what would be right
};

struct HttpLimits {
  size_t request_line = 4096;
  size_t head = 16 * 1024;  // request line and headers
  size_t headers = 64;      // how many
  size_t body = 256 * 1024;
};

/// "Not Found" and the like; never empty.
std::string_view reasonOf(int status);

}  // namespace tidepool::api
