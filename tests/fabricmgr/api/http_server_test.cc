// SPDX-License-Identifier: Apache-2.0
// The server over real sockets: keep-alive, bad requests, slow and greedy clients, streams, lanes,
// stopping. What is over TLS is in tls_test.cc.
#include "fabricmgr/api/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <deque>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/fabricmgr/api/echo_server.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HttpServer, AnswersRequestsOnOneConnectionOneAfterTheOther) {
  EchoServer server;
  RawClient client(server.path());
  ASSERT_TRUE(client.connected());
  EXPECT_THAT(client.ask(getRequest("/a?x=1")), HasSubstr("GET /a by viewer:uid-"));
  EXPECT_THAT(client.ask(postRequest("/b", "hello")), HasSubstr("POST /b hello"));
  // Two at once: the answers come in order.
  client.send(getRequest("/first") + getRequest("/second"));
  EXPECT_THAT(client.answer(), HasSubstr("GET /first"));
  EXPECT_THAT(client.answer(), HasSubstr("GET /second"));
}

TEST(HttpServer, TakesARequestByteByByte) {
  EchoServer server;
  RawClient client(server.path());
  for (const char c : postRequest("/slow", "body")) ASSERT_TRUE(client.send(std::string(1, c)));
  EXPECT_THAT(client.answer(), HasSubstr("POST /slow body"));
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  EchoServer server;
  RawClient client(server.path());
  client.send("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n" + getRequest("/b"));
  const std::string all = client.until("GET /b");
  EXPECT_THAT(all, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("HEAD /a by")));
}

TEST(HttpServer, RefusesAndClosesWithTheAnswerIntact) {
  EchoServer server;
  struct Case {
    std::string bytes;
    const char* status;
  };
  const Case cases[] = {
      {"nonsense\r\n\r\n", "HTTP/1.1 400 "},
      {std::string(40'000, 'x'), "HTTP/1.1 431 "},
      {"GET /" + std::string(8000, 'y') + " HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 414 "},
      {postRequest("/", std::string(300'000, 'z')), "HTTP/1.1 413 "},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 411 "},
  };
  for (const Case& one : cases) {
    RawClient client(server.path());
    client.send(one.bytes);
    const std::string all = client.rest();
    EXPECT_THAT(all, StartsWith(one.status));
    EXPECT_THAT(all, HasSubstr("Connection: close"));
  }
  EXPECT_EQ(server.handler.refusals.load(), 5);
}

TEST(HttpServer, SaysContinueOnlyToWhatItWillTake) {
  EchoServer server;
  RawClient client(server.path());
  client.send("POST /c HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.send("ok");
  EXPECT_THAT(client.until("POST /c ok"), HasSubstr("POST /c ok"));
  RawClient greedy(server.path());
  greedy.send(
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 900000\r\n\r\n");
  EXPECT_THAT(greedy.rest(), StartsWith("HTTP/1.1 413 "));
}

TEST(HttpServer, CutsOffSlowClientsWhileOthersAreServed) {
  ServerOptions options;
  options.times.request = Nanoseconds(300'000'000);
  options.times.idle = Nanoseconds(2 * kSecond);  // far more than it takes to send anything below
  EchoServer server(options);
  RawClient slow(server.path());
  RawClient silent(server.path());
  RawClient stalled(server.path());
  slow.send("GET / HTT");
  stalled.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  RawClient other(server.path());
  EXPECT_THAT(other.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  // A byte now and then does not extend the time for the whole.
  EXPECT_THAT(slow.rest(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(stalled.rest(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(silent.rest(), "");
}

TEST(HttpServer, ALongAnswerGetsTheTimeThatItTakes) {
  ServerOptions options;
  options.times.reply = Nanoseconds(100'000'000);
  EchoServer server(options);
  RawClient client(server.path());
  client.send(getRequest("/big"));  // 2 MiB: more than the socket holds; 32 s at the slowest rate
  RawClient other(server.path());
  EXPECT_THAT(other.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  EXPECT_GT(client.answer().size(), 2u << 20);
}

TEST(HttpServer, LimitsRequestsAndConnectionsOfOnePrincipal) {
  ServerOptions options;
  options.rate = {1, 5};
  options.connections_of_one = 2;
  EchoServer server(options);
  RawClient first(server.path());
  RawClient second(server.path());
  // However slow the machine is: sooner or later it asks faster than once a second.
  const auto goodOnes = [](RawClient& client) {
    int good = 0;
    std::string answer = client.ask(getRequest("/"));
    for (; answer.starts_with("HTTP/1.1 200 "); ++good) answer = client.ask(getRequest("/"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 429 "));
    EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
    return good;
  };
  EXPECT_GE(goodOnes(first), 5);
  EXPECT_LT(goodOnes(second), 5) << "it is the same principal";
  RawClient third(server.path());
  EXPECT_THAT(third.rest(), StartsWith("HTTP/1.1 429 "));
}

TEST(HttpServer, AQuarterOfLocalConnectionsIsForAdministrators) {
  ServerOptions options;
  options.local_connections = 4;
  for (const Role role : {Role::kViewer, Role::kAdmin}) {
    options.unix_socket = UnixListener{"", 0666, {{}, role}};
    EchoServer server(options);
    const size_t room = role == Role::kAdmin ? 4 : 3;
    std::deque<RawClient> clients;
    for (size_t i = 0; i < room; ++i) {
      EXPECT_THAT(clients.emplace_back(server.path()).ask(getRequest("/")),
                  StartsWith("HTTP/1.1 200 "));
    }
    RawClient one_more(server.path());
    EXPECT_EQ(one_more.rest(), "");
    EXPECT_THAT(server.handler.nextStranger(), HasSubstr("local connections are taken"));
  }
}

TEST(HttpServer, RunsOutOfDescriptorsAndGoesOn) {
  EchoServer server;
  std::deque<RawClient> idle;
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(idle.emplace_back(server.path()).ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  }
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = dup(STDERR_FILENO);
  close(lowest);
  // The client gets the last one, and the server none.
  const rlimit tight = {static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  RawClient client(server.path());
  const std::string answer = client.ask(getRequest("/"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("Too many open files"));
}

TEST(HttpServer, AConnectionThatGoesMakesRoomForAnother) {
  ServerOptions options;
  options.connections_of_one = 1;
  EchoServer server(options);
  for (int i = 0; i < 20; ++i) {
    RawClient client(server.path());
    const std::string answer = client.ask(getRequest("/", "Connection: close\r\n"));
    ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 ")) << i;
    EXPECT_EQ(client.rest(), "");
    server.waitForConnections(0);
  }
}

TEST(HttpServer, StreamsPartsUntilTheEnd) {
  EchoServer server;
  RawClient client(server.path());
  client.send(getRequest("/stream"));
  auto exchange = server.handler.nextKept();
  exchange->openStream({200, "text/event-stream", {}, ""});
  exchange->write("data: 1\n\n");
  EXPECT_THAT(client.until("data: 1\n\n\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"));
  exchange->write("data: 2\n\n");
  exchange->endStream();
  EXPECT_THAT(client.until("0\r\n\r\n"), HasSubstr("9\r\ndata: 2\n\n\r\n0\r\n\r\n"));
  // The connection goes on.
  client.send(getRequest("/after"));
  EXPECT_THAT(client.until("GET /after"), HasSubstr("GET /after"));
}

TEST(HttpServer, TellsTheHandlerThatAWatcherIsGone) {
  EchoServer server;
  auto client = std::make_unique<RawClient>(server.path());
  client->send(getRequest("/stream"));
  auto exchange = server.handler.nextKept();
  EXPECT_FALSE(exchange->gone());
  client.reset();
  server.waitForConnections(0);
  EXPECT_TRUE(exchange->gone());
  exchange->openStream({200, "text/event-stream", {}, ""});  // into the void
}

TEST(HttpServer, AReaderOfAStreamThatFallsBehindIsCutOff) {
  EchoServer server;
  RawClient client(server.path());
  client.send(getRequest("/stream"));
  auto exchange = server.handler.nextKept();
  exchange->openStream({200, "text/event-stream", {}, ""});
  for (int i = 0; i < 64 && !exchange->gone(); ++i) exchange->write(std::string(256 * 1024, 'x'));
  server.waitForConnections(0);
  EXPECT_TRUE(exchange->gone());
}

TEST(HttpServer, AnAnswerThatIsForgottenIsAnError) {
  EchoServer server;
  RawClient client(server.path());
  client.send(getRequest("/keep"));
  server.handler.nextKept().reset();
  EXPECT_THAT(client.answer(), StartsWith("HTTP/1.1 500 "));
  client.send(getRequest("/throw"));
  EXPECT_THAT(client.answer(), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServer, SlowRequestsDoNotHoldUpQuickOnes) {
  ServerOptions options;
  options.slow_threads = 1;
  EchoServer server(options);
  RawClient slow(server.path());
  slow.send(getRequest("/block"));
  server.handler.waitForBlocked();
  RawClient waiting(server.path());
  waiting.send(getRequest("/block"));
  RawClient quick(server.path());
  EXPECT_THAT(quick.ask(getRequest("/quick")), StartsWith("HTTP/1.1 200 "));
  server.handler.unblock();
  EXPECT_THAT(slow.answer(), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(waiting.answer(), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, StopsCleanlyWithRequestsAndWatchesUnderWay) {
  auto server = std::make_unique<EchoServer>();
  RawClient idle(server->path());
  RawClient watcher(server->path());
  RawClient busy(server->path());
  EXPECT_THAT(idle.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  watcher.send(getRequest("/stream"));
  auto exchange = server->handler.nextKept();
  exchange->openStream({200, "text/event-stream", {}, ""});
  exchange->write("data: 1\n\n");
  watcher.until("data: 1\n\n\r\n");
  busy.send(getRequest("/block"));
  server->handler.waitForBlocked();
  std::thread stopping([&] { server->stop(); });
  EXPECT_EQ(idle.rest(), "");
  EXPECT_THAT(watcher.rest(), HasSubstr("0\r\n\r\n"));
  server->handler.unblock();
  EXPECT_THAT(busy.rest(), StartsWith("HTTP/1.1 200 "));
  stopping.join();
}

TEST(HttpServer, ReplacesTheSocketOfADeadServerOnly) {
  Scratch scratch;
  EchoHandler handler;
  ServerOptions options;
  options.unix_socket = UnixListener{scratch / "sock", 0666, {}};
  {
    UniqueFd dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    options.unix_socket->path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  auto server = HttpServer::start(options, handler);
  ASSERT_TRUE(server) << server.error().text();
  const auto second = HttpServer::start(options, handler);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
  RawClient client(options.unix_socket->path);
  EXPECT_THAT(client.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServer, PeersGetTheHighestRoleThatFits) {
  for (const auto& [rules, role] : std::vector<std::pair<PeerRules, std::string>>{
           {{{{Role::kViewer, {getuid()}, {}}, {Role::kAdmin, {}, {getgid()}}}, Role::kNone},
            "admin"},
           {{{{Role::kOperator, {getuid() + 1}, {}}}, Role::kViewer}, "viewer"},
           {{{{Role::kOperator, {getuid()}, {}}}, Role::kNone}, "operator"},
           {{}, "none"}}) {
    ServerOptions options;
    options.unix_socket = UnixListener{"", 0666, rules};
    EchoServer server(options);
    RawClient client(server.path());
    EXPECT_THAT(client.ask(getRequest("/")), HasSubstr("by " + role + ":uid-"));
  }
}

TEST(HttpServer, AStreamToHttp10IsNotChunkedAndEndsWithTheConnection) {
  EchoServer server;
  RawClient client(server.path());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto exchange = server.handler.nextKept();
  exchange->openStream({200, "text/event-stream", {}, ""});
  exchange->write("one\n");
  client.until("one\n");
  exchange->write("two\n");
  exchange->endStream();
  const std::string answer = client.rest();
  EXPECT_EQ(answer.find("chunked"), std::string::npos) << answer;
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), "one\ntwo\n");
}

}  // namespace
}  // namespace tidepool::api
