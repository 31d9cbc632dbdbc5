// SPDX-License-Identifier: Apache-2.0
// A request as the HTTP server takes it apart: head, path and method, query, then the body against
// the schema of its route. A head ends with the first empty line; what follows is the body.
#include <algorithm>

#include "fabricmgr/api/http_parser.h"
#include "fabricmgr/api/json_value.h"
#include "fabricmgr/api/routes.h"
#include "fabricmgr/api/schema.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

bool hasControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

void checkRefusal(const api::Refusal& refusal) {
  TP_CHECK_OP(refusal.status, >=, 400);
  TP_CHECK(api::reasonOf(refusal.status) != "Unknown");
  TP_CHECK(!refusal.detail.empty());
}

void checkPairs(const api::Pairs& pairs) {
  for (const auto& [name, value] : pairs) {
    TP_CHECK(!name.empty() && !hasControl(name));
    TP_CHECK(value.find_first_of("\r\n") == std::string::npos);
  }
}

/// What JSON and queries come to has the form that handlers rely on.
void checkFault(const api::InputFault& fault) { TP_CHECK(!fault.detail.empty()); }

std::string post(const char* path, const std::string& body) {
  return std::string("POST ") + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k1\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      "GET /v1/regions?limit=10&host=a%2Db HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
      "GET /v1/events?since=7&wait_ms=1000 HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 3\r\n\r\n",
      "DELETE /v1/pools/a HTTP/1.1\r\nHost: x\r\nIf-Match: \"4\"\r\nConnection: close\r\n\r\n",
      "GET /v1/status HTTP/1.0\r\n\r\n",
      post("/v1/pools", R"({"name":"a","class":"cxl"})"),
      post("/v1/devices", R"({"name":"d","pool":"a","address":"h:1","capacity_bytes":1048576})"),
      post("/v1/regions", R"({"host":"a","size_bytes":2097152,"constraints":{"max_devices":2,)"
                          R"("avoid_domains":["x"]}})"),
  };
}

void tryInput(std::string_view input) {
  const size_t empty_line = input.find("\r\n\r\n");
  const size_t end = empty_line == std::string_view::npos ? input.size() : empty_line + 4;
  const api::HttpLimits limits;
  const auto head = api::parseHead(input.substr(0, end), limits);
  if (!head) return checkRefusal(head.error());
  TP_CHECK_OP(head->body_size, <=, limits.body);
  TP_CHECK(!head->request.path.empty() && head->request.path.front() == '/');
  TP_CHECK(!hasControl(head->request.path));
  checkPairs(head->request.query);
  checkPairs(head->request.headers);
  const api::Match match = api::matchRoute(head->request.method, head->request.path);
  if (match.route == nullptr) return;
  const auto query = api::readQuery(head->request.query, *match.route->query);
  if (!query) return checkFault(query.error());
  if (match.route->body == nullptr) return;
  const auto body = api::parseJson(input.substr(end));
  if (!body) return checkFault(body.error());
  const auto good = api::check(*body, *match.route->body);
  if (!good) checkFault(good.error());
}

}  // namespace tidepool::fuzz
