// SPDX-License-Identifier: Apache-2.0
// Request line, headers, target. See http_parser.h for what strict means. Pure; thread-safe.
#include "fabricmgr/api/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tidepool::api {
namespace {

using Failed = tl::unexpected<Refusal>;

Failed refuse(int status, std::string detail) { return Failed({status, std::move(detail)}); }

constexpr bool isAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool isToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return isAlnum(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}
constexpr bool isControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

int hexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

tl::expected<void, Refusal> parseQuery(std::string_view text, Pairs* out) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    std::string key;
    std::string value;
    if (!percentDecode(pair.substr(0, equals), Plus::kIsSpace, &key) || key.empty() ||
        (equals != std::string_view::npos &&
         !percentDecode(pair.substr(equals + 1), Plus::kIsSpace, &value))) {
      return refuse(400,
                    "the query is not well-formed: write it as ?name=value&name=value, "
                    "with %XX for other characters");
    }
    if (findIn(*out, key) != nullptr) {
      return refuse(400, fmt::format("query parameter '{}' is given twice", key));
    }
    out->emplace_back(std::move(key), std::move(value));
  }
  return {};
}

tl::expected<void, Refusal> parseTarget(std::string_view target, Request* request) {
  if (target.empty() || target.front() != '/') {
    return refuse(400, "the request target is not a path: it begins with '/'");
  }
  const size_t mark = target.find('?');
  if (!percentDecode(target.substr(0, mark), Plus::kIsPlus, &request->path)) {
    return refuse(400, "the path has a malformed %XX or a control character");
  }
  if (mark == std::string_view::npos) return {};
  return parseQuery(target.substr(mark + 1), &request->query);
}

tl::expected<void, Refusal> parseRequestLine(std::string_view line, const HttpLimits& limits,
                                             Head* head) {
  if (line.size() > limits.request_line) {
    return refuse(414,
                  fmt::format("the request line is longer than {} bytes", limits.request_line));
  }
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !isToken(line.substr(0, first))) {
    return refuse(400, "the request line is not 'METHOD PATH HTTP/1.1'");
  }
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (!version.starts_with("HTTP/")) {
      return refuse(400, "the request line is not 'METHOD PATH HTTP/1.1'");
    }
    return refuse(505, "this server speaks HTTP/1.1");
  }
  if (version == "HTTP/1.0") {
    head->version = Head::Version::k10;
    head->after = Head::After::kClose;
  }
  head->request.method = line.substr(0, first);
  return parseTarget(line.substr(first + 1, last - first - 1), &head->request);
}

tl::expected<void, Refusal> parseHeader(std::string_view line, Pairs* out) {
  if (line.front() == ' ' || line.front() == '\t') {
    return refuse(400, "a header is folded over two lines: write it in one");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !isToken(line.substr(0, colon))) {
    return refuse(400, "a header is not 'Name: value'");
  }
  const std::string_view value = trim(line.substr(colon + 1));
  if (std::any_of(value.begin(), value.end(), [](char c) { return isControl(c) && c != '\t'; })) {
    return refuse(400, fmt::format("header '{}' has a control character", line.substr(0, colon)));
  }
  out->emplace_back(lower(line.substr(0, colon)), std::string(value));
  return {};
}

/// Those that frame the message must not come twice: which one would count?
tl::expected<void, Refusal> checkSingle(const Pairs& headers) {
  for (const char* name : {"host", "content-length", "content-type", "expect", "if-match",
                           "idempotency-key", "last-event-id"}) {
    const auto same = [&](const auto& header) { return header.first == name; };
    if (std::count_if(headers.begin(), headers.end(), same) > 1) {
      return refuse(400, fmt::format("header '{}' is given twice", name));
    }
  }
  return {};
}

tl::expected<size_t, Refusal> bodySize(const Request& request, const HttpLimits& limits) {
  if (request.header("transfer-encoding") != nullptr) {
    return refuse(411, "Transfer-Encoding is not accepted: send the body with Content-Length");
  }
  const std::string* text = request.header("content-length");
  if (text == nullptr) return size_t{0};
  size_t size = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, size);
  if (stop != end || text->empty() || error == std::errc::invalid_argument) {
    return refuse(400, "Content-Length is not a number");
  }
  if (error == std::errc::result_out_of_range || size > limits.body) {
    return refuse(413, fmt::format("the body is larger than {} bytes", limits.body));
  }
  return size;
}

tl::expected<void, Refusal> frame(std::string_view version_line, const HttpLimits& limits,
                                  Head* head) {
  const Request& request = head->request;
  if (auto single = checkSingle(request.headers); !single) return single;
  if (version_line.ends_with("1.1") && request.header("host") == nullptr) {
    return refuse(400, "header 'Host' is missing");
  }
  const auto size = bodySize(request, limits);
  if (!size) return Failed(size.error());
  head->body_size = *size;
  if (const std::string* expect = request.header("expect")) {
    if (lower(*expect) != "100-continue") {
      return refuse(417, "only 'Expect: 100-continue' is understood");
    }
    head->expects = Head::Expects::kContinue;
  }
  if (const std::string* connection = request.header("connection")) {
    if (lower(*connection).find("close") != std::string::npos) head->after = Head::After::kClose;
  }
  return {};
}

}  // namespace

std::string_view reasonOf(int status) {
  static constexpr std::pair<int, std::string_view> kReasons[] = {
      {100, "Continue"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {410, "Gone"},
      {411, "Length Required"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {428, "Precondition Required"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {507, "Insufficient Storage"}};
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "Unknown";
}

bool percentDecode(std::string_view text, Plus plus, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus == Plus::kIsSpace) {
      c = ' ';
    }
    if (isControl(c)) return false;
    *out += c;
  }
  return true;
}

tl::expected<Head, Refusal> parseHead(std::string_view text, const HttpLimits& limits) {
  const bool ended = text.ends_with("\r\n\r\n");
  Head head;
  std::string_view first;
  for (bool at_start = true; !text.empty(); at_start = false) {
    const size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return refuse(400, "lines end in CR LF");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (line.find_first_of("\r\n") != std::string_view::npos) {
      return refuse(400, "lines end in CR LF, not in one of them alone");
    }
    if (at_start) {
      first = line;
      if (auto parsed = parseRequestLine(line, limits, &head); !parsed)
        return Failed(parsed.error());
    } else if (!line.empty()) {
      if (head.request.headers.size() >= limits.headers) {
        return refuse(431, fmt::format("there are more than {} headers", limits.headers));
      }
      if (auto parsed = parseHeader(line, &head.request.headers); !parsed) {
        return Failed(parsed.error());
      }
    } else if (!text.empty()) {
      return refuse(400, "an empty line stands within the head");
    }
  }
  if (!ended) return refuse(400, "an empty line has to end the head");
  if (auto framed = frame(first, limits, &head); !framed) return Failed(framed.error());
  return head;
}

}  // namespace tidepool::api
