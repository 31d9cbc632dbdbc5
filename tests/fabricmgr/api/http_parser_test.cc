// SPDX-License-Identifier: Apache-2.0
// Heads of requests: what is taken, what is refused and with which status, and that no bytes at all
// make the parser do anything but answer.
#include "fabricmgr/api/http_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tidepool::api {
namespace {

std::string get(const std::string& more, const std::string& target = "/v1/pools") {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
}

TEST(HttpParser, TakesAnOrdinaryRequest) {
  const auto head = parseHead(get("Content-Length: 12\r\nX-Odd:  \t a b \r\n",
                                  "/v1/hosts/a%2Db?limit=10&name=a+b%21&empty"),
                              HttpLimits());
  ASSERT_TRUE(head) << head.error().detail;
  EXPECT_EQ(head->request.method, "GET");
  EXPECT_EQ(head->request.path, "/v1/hosts/a-b");
  EXPECT_EQ(*head->request.parameter("limit"), "10");
  EXPECT_EQ(*head->request.parameter("name"), "a b!");
  EXPECT_EQ(*head->request.parameter("empty"), "");
  EXPECT_EQ(head->request.parameter("none"), nullptr);
  EXPECT_EQ(*head->request.header("x-odd"), "a b");
  EXPECT_EQ(head->body_size, 12u);
  EXPECT_EQ(head->after, Head::After::kKeep);
}

TEST(HttpParser, KnowsWhenTheConnectionEnds) {
  EXPECT_EQ(parseHead(get("Connection: Close\r\n"), HttpLimits())->after, Head::After::kClose);
  EXPECT_EQ(parseHead("GET / HTTP/1.0\r\n\r\n", HttpLimits())->after, Head::After::kClose);
  EXPECT_EQ(parseHead(get("Expect: 100-continue\r\n"), HttpLimits())->expects,
            Head::Expects::kContinue);
}

struct Bad {
  std::string text;
  int status;
  const char* says;
};

TEST(HttpParser, RefusesByNameWhatCouldBeReadInTwoWays) {
  const std::string many(200, 'h');
  std::string headers;
  for (int i = 0; i < 70; ++i) headers += "A" + std::to_string(i) + ": b\r\n";
  const Bad cases[] = {
      {"", 400, "empty line"},
      {"GET / HTTP/1.1\r\nHost: x\r\n", 400, "empty line"},
      {"\r\n", 400, "request line"},
      {"GET /\r\n\r\n", 400, "request line"},
      {"GET  HTTP/1.1\r\n\r\n", 400, "path"},
      {"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "request line"},
      {"PRI * HTTP/2.0\r\n\r\n", 505, "HTTP/1.1"},
      {"GET / FTP/1.1\r\n\r\n", 400, "request line"},
      {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "path"},
      {"GET / HTTP/1.1\r\n\r\n", 400, "'Host' is missing"},
      {"GET / HTTP/1.1\nHost: x\n\r\n", 400, "CR LF"},
      {get("Host: y\r\n"), 400, "'host' is given twice"},
      {get("Content-Length: 1\r\nContent-Length: 1\r\n"), 400, "given twice"},
      {get("Content-Length: -1\r\n"), 400, "not a number"},
      {get("Content-Length: 1, 1\r\n"), 400, "not a number"},
      {get("Content-Length: \r\n"), 400, "not a number"},
      {get("Content-Length: 99999999999999999999999\r\n"), 413, "larger than"},
      {get("Content-Length: 300000\r\n"), 413, "larger than 262144 bytes"},
      {get("Transfer-Encoding: chunked\r\n"), 411, "Content-Length"},
      {get("Expect: miracles\r\n"), 417, "100-continue"},
      {get("A: b\r\n c\r\n"), 400, "folded"},
      {get("A : b\r\n"), 400, "Name: value"},
      {get("nonsense\r\n"), 400, "Name: value"},
      {get(std::string("A: b\0c\r\n", 8)), 400, "control character"},
      {get("", "/%zz"), 400, "%XX"},
      {get("", "/a%0ab"), 400, "control character"},
      {get("", "/a?x=%4"), 400, "query"},
      {get("", "/a?=1"), 400, "query"},
      {get("", "/a?x=1&x=2"), 400, "'x' is given twice"},
      {get("", "/" + std::string(5000, 'a')), 414, "longer than 4096"},
      {get(headers), 431, "more than 64 headers"},
  };
  for (const Bad& one : cases) {
    const auto head = parseHead(one.text, HttpLimits());
    ASSERT_FALSE(head) << one.text;
    EXPECT_EQ(head.error().status, one.status) << one.text << head.error().detail;
    EXPECT_NE(head.error().detail.find(one.says), std::string::npos) << head.error().detail;
  }
}

TEST(HttpParser, SurvivesWhateverIsThrownAtIt) {
  std::mt19937 random(7);
  const std::string good = get("Content-Length: 5\r\nIf-Match: \"3\"\r\n", "/v1/a%20b?x=%41&y=+");
  for (int round = 0; round < 200'000; ++round) {
    std::string text = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 8);
          if (text.empty()) text = "x";
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 16));
      }
    }
    const auto head = parseHead(text, HttpLimits());
    if (head) {
      EXPECT_EQ(head->request.path.front(), '/');
      EXPECT_LE(head->body_size, HttpLimits().body);
    } else {
      EXPECT_GE(head.error().status, 400);
      EXPECT_FALSE(head.error().detail.empty());
    }
  }
}

}  // namespace
}  // namespace tidepool::api
