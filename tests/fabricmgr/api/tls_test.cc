// SPDX-License-Identifier: Apache-2.0
// Mutual TLS with certificates of the lab's authority: who gets in as whom, and who does not: no
// certificate, another authority's, expired, revoked (also while connected), a server's, no role.
#include "fabricmgr/tls/tls_context.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "fabricmgr/ca/authority.h"
#include "tests/fabricmgr/api/echo_server.h"

namespace tidepool::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kDay = 24 * 3600;

class TlsServer : public ::testing::Test {
 protected:
  TlsServer() : ca_(*ca::Authority::init(scratch_ / "ca", 30 * kDay)) {
    const auto server =
        ca_.issue({"server", "manager", {"127.0.0.1", "localhost"}, kDay}, folder());
    EXPECT_TRUE(server) << server.error().text();
    options_.tcp = TcpListener{
        "127.0.0.1:0", {server->certificate, server->key, ca_.certificatePath(), ca_.crlPath()}};
  }

  std::string folder() { return scratch_ / "ca"; }
  ClientFiles issue(const std::string& kind, const std::string& name, int64_t valid = kDay) {
    const auto issued = ca_.issue({kind, name, {}, valid}, folder());
    EXPECT_TRUE(issued) << issued.error().text();
    return {ca_.certificatePath(), issued->certificate, issued->key};
  }
  static std::string ask(EchoServer& server, const ClientFiles& files) {
    RawClient client((*server).port(), files);
    return client.connected() ? client.ask(getRequest("/")) : "";
  }

  Scratch scratch_;
  ca::Authority ca_;
  ServerOptions options_;
};

TEST_F(TlsServer, TheCertificateSaysWhoItIs) {
  EchoServer server(options_);
  EXPECT_THAT(ask(server, issue("operator", "ann")), HasSubstr("by operator:ann"));
  EXPECT_THAT(ask(server, issue("host", "node7")), HasSubstr("by host:node7"));
  EXPECT_THAT(ask(server, issue("viewer", "graf")), HasSubstr("by viewer:graf"));
  EXPECT_THAT(ask(server, issue("admin", "root")), HasSubstr("by admin:root"));
}

TEST_F(TlsServer, StrangersDoNotGetIn) {
  EchoServer server(options_);
  EXPECT_EQ(ask(server, {ca_.certificatePath(), "", ""}), "");
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("certificate"));

  Scratch other;
  const auto foreign = ca::Authority::init(other / "ca", kDay);
  const auto impostor = foreign->issue({"admin", "root", {}, kDay}, other / "ca");
  EXPECT_EQ(ask(server, {ca_.certificatePath(), impostor->certificate, impostor->key}), "");
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("issuer"));

  EXPECT_EQ(ask(server, issue("host", "late", -3 * kDay - 60)), "");
  EXPECT_EQ(server.handler.nextStranger(), "the certificate of agent late expired 3 days ago");

  // A server's certificate is none for a client.
  const TlsFiles& own = options_.tcp->tls;
  EXPECT_EQ(ask(server, {own.ca, own.certificate, own.key}), "");
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("purpose"));
}

TEST_F(TlsServer, AClientDoesNotBelieveAnAgentThatPosesAsTheServer) {
  const ClientFiles agent = issue("host", "node1");
  ServerOptions options;
  options.tcp = TcpListener{"127.0.0.1:0", {agent.certificate, agent.key, agent.ca, ""}};
  EchoServer impostor(options);
  RawClient client((*impostor).port(), issue("operator", "ann"));
  EXPECT_FALSE(client.connected());
}

TEST_F(TlsServer, TellsWhoseCertificateEndsAndWhen) {
  EchoServer server(options_);
  EXPECT_THAT(ask(server, issue("host", "node1")), HasSubstr("by host:node1"));
  EXPECT_EQ(ask(server, issue("host", "late", -10)), "");
  server.handler.nextStranger();
  // What is not the authority's, or revoked, says nothing of anybody.
  Scratch other;
  const auto foreign = ca::Authority::init(other / "ca", kDay);
  const auto impostor = foreign->issue({"host", "node2", {}, -10}, other / "ca");
  EXPECT_EQ(ask(server, {ca_.certificatePath(), impostor->certificate, impostor->key}), "");
  server.handler.nextStranger();
  const ClientFiles gone = issue("host", "gone", -10);
  ASSERT_TRUE(ca_.revoke("host:gone"));
  ASSERT_TRUE((*server).reloadTls());
  // The loop takes the new list before it accepts anybody that comes later.
  std::string why;
  do {
    EXPECT_EQ(ask(server, gone), "");
    why = server.handler.nextStranger();
  } while (why.find("expired") != std::string::npos);
  EXPECT_THAT(why, HasSubstr("revoked"));
  const auto seen = server.handler.ends();
  ASSERT_EQ(seen.count("host:node1"), 1u);
  EXPECT_EQ(seen.count("host:node2"), 0u);
  EXPECT_NEAR(static_cast<double>(seen.at("host:node1") - std::time(nullptr)), kDay, 600);
  EXPECT_LT(seen.at("host:late"), std::time(nullptr));
  const auto own = server.handler.own();
  ASSERT_EQ(own.size(), 3u);
  EXPECT_EQ(own[0].kind + own[1].kind + own[2].kind, "servercacrl");
  EXPECT_EQ(own[0].name, "manager");
  EXPECT_EQ(own[1].end, own[2].end) << "the list is as good as the root";
}

TEST_F(TlsServer, AListThatHasEndedIsSaidInWords) {
  Scratch other;
  const auto old = ca::Authority::init(other / "ca", -3600);
  const auto host = old->issue({"host", "node1", {}, kDay}, other / "ca");
  ServerOptions options = options_;
  options.tcp->tls.ca = old->certificatePath();
  options.tcp->tls.crl = old->crlPath();
  EchoServer server(options);
  EXPECT_EQ(ask(server, {ca_.certificatePath(), host->certificate, host->key}), "");
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("the list of revoked certificates expired"));
}

TEST_F(TlsServer, PlainTextIsNotAnswered) {
  ServerOptions options = options_;
  options.times.handshake = Nanoseconds(300'000'000);
  EchoServer server(options);
  const auto target = parseEndpoint(("127.0.0.1:" + std::to_string((*server).port())).c_str());
  const auto plain = connectTcp(*target, Nanoseconds(10 * kSecond));
  const auto silent = connectTcp(*target, Nanoseconds(10 * kSecond));
  const std::string text = getRequest("/");
  const iovec part = {const_cast<char*>(text.data()), text.size()};
  ASSERT_TRUE((*plain)->send({&part, 1}, Wait::kUntilTimeout));
  EXPECT_FALSE(server.handler.nextStranger().empty());
  EXPECT_FALSE(server.handler.nextStranger().empty());  // too slow
  server.waitForConnections(0);
}

TEST_F(TlsServer, WhoIsRevokedIsCutOffAtTheReload) {
  EchoServer server(options_);
  const ClientFiles ann = issue("operator", "ann");
  RawClient stays((*server).port(), issue("operator", "bob"));
  RawClient goes((*server).port(), ann);
  EXPECT_THAT(stays.ask(getRequest("/")), HasSubstr("operator:bob"));
  EXPECT_THAT(goes.ask(getRequest("/")), HasSubstr("operator:ann"));
  ASSERT_TRUE(ca_.revoke("operator:ann"));
  EXPECT_THAT(goes.ask(getRequest("/")), HasSubstr("operator:ann")) << "not before the reload";
  ASSERT_TRUE((*server).reloadTls());
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("operator:ann: certificate revoked"));
  EXPECT_EQ(goes.rest(), "");
  EXPECT_THAT(stays.ask(getRequest("/")), HasSubstr("operator:bob"));
  EXPECT_EQ(ask(server, ann), "");
  EXPECT_THAT(server.handler.nextStranger(),
              HasSubstr("certificate revoked (it says it is operator:ann)"));
}

TEST_F(TlsServer, WhoIsConnectedStaysSoWhenAnotherHandlerTakesOver) {
  EchoHandler next;
  EchoServer server(options_);
  RawClient ann((*server).port(), issue("operator", "ann"));
  RawClient bob((*server).port(), issue("operator", "bob"));
  RawClient asked(server.path());
  for (RawClient* client : {&ann, &bob}) {
    EXPECT_THAT(client->ask(getRequest("/")), Not(HasSubstr("Term: ")));
  }
  asked.send(getRequest("/keep"));
  const auto kept = server.handler.nextKept();
  (*server).handOver(next, {{"Term", "2"}});
  for (RawClient* client : {&ann, &bob}) {
    std::string answer;
    do {
      answer = client->ask(getRequest("/"));
      ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
    } while (answer.find("Term: 2") == std::string::npos);
  }
  EXPECT_EQ(next.own().size(), 3u);
  EXPECT_EQ(next.ends(), server.handler.ends()) << "it was not there to see them";
  kept->reply({200, "text/plain", {}, "by the first\n"});
  EXPECT_THAT(asked.answer(), HasSubstr("by the first"));
  // Certificates that were checked before are so at each reload.
  ASSERT_TRUE(ca_.revoke("operator:ann"));
  ASSERT_TRUE((*server).reloadTls());
  EXPECT_THAT(next.nextStranger(), HasSubstr("operator:ann: certificate revoked"));
  EXPECT_EQ(ann.rest(), "");
  EXPECT_THAT(bob.ask(getRequest("/")), HasSubstr("operator:bob"));
}

/// A client that stops in the middle of its handshake: the server has answered its hello, and is
/// yet to see its certificate.
class SlowClient {
 public:
  SlowClient(uint16_t port, const ClientFiles& files) {
    tcp_ = std::move(*connectTcp(*parseEndpoint(("127.0.0.1:" + std::to_string(port)).c_str()),
                                 Nanoseconds(10 * kSecond)));
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_use_certificate_chain_file(context_.get(), files.certificate.c_str());
    SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl_.get());
    (void)SSL_do_handshake(ssl_.get());
    flush();
    take();
  }
  /// What the server answers once the handshake is over; nothing if it hangs up.
  std::string goOn(const std::string& request) {
    while (SSL_do_handshake(ssl_.get()) != 1) {
      flush();
      if (!take()) return "";
    }
    SSL_write(ssl_.get(), request.data(), static_cast<int>(request.size()));
    flush();
    char text[4096];
    int got = 0;
    while ((got = SSL_read(ssl_.get(), text, sizeof text)) <= 0) {
      if (!take()) return "";
    }
    return {text, static_cast<size_t>(got)};
  }

 private:
  void flush() {
    char bytes[16384];
    const int size = BIO_read(SSL_get_wbio(ssl_.get()), bytes, sizeof bytes);
    if (size > 0) (void)::send(tcp_->fd(), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  }
  bool take() {
    pollfd waiting = {tcp_->fd(), POLLIN, 0};
    if (poll(&waiting, 1, 10'000) != 1) return false;
    char bytes[16384];
    const ssize_t got = recv(tcp_->fd(), bytes, sizeof bytes, 0);
    if (got > 0) BIO_write(SSL_get_rbio(ssl_.get()), bytes, static_cast<int>(got));
    return got > 0;
  }
  std::unique_ptr<Connection> tcp_;
  SslPointer<SSL_CTX> context_;
  SslPointer<SSL> ssl_;
};

TEST_F(TlsServer, WhoIsRevokedInTheMiddleOfItsHandshakeDoesNotGetIn) {
  EchoServer server(options_);
  const ClientFiles ann = issue("operator", "ann");
  SlowClient half((*server).port(), ann);
  SlowClient other((*server).port(), issue("operator", "bob"));
  RawClient whole((*server).port(), ann);
  ASSERT_TRUE(ca_.revoke("operator:ann"));
  ASSERT_TRUE((*server).reloadTls());
  // Now the new list is in force.
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("operator:ann: certificate revoked"));
  EXPECT_EQ(half.goOn(getRequest("/")), "");
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("operator:ann: certificate revoked"));
  EXPECT_THAT(other.goOn(getRequest("/")), HasSubstr("operator:bob"));
}

/// Connected, and silent.
std::unique_ptr<Connection> stranger(EchoServer& server) {
  const std::string address = "127.0.0.1:" + std::to_string((*server).port());
  return std::move(*connectTcp(*parseEndpoint(address.c_str()), Nanoseconds(10 * kSecond)));
}

TEST_F(TlsServer, StrangersTakeNobodysRoom) {
  options_.handshakes_of_one = 2;
  options_.connections = 1;
  EchoServer server(options_);
  const ClientFiles ann = issue("operator", "ann");
  RawClient known((*server).port(), ann);
  EXPECT_THAT(known.ask(getRequest("/")), HasSubstr("operator:ann"));
  auto one = stranger(server);
  auto other = stranger(server);
  const auto refused = stranger(server);
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("too many handshakes"));
  EXPECT_THAT(known.ask(getRequest("/")), HasSubstr("operator:ann"));
  RawClient root(server.path());
  EXPECT_THAT(root.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  one.reset();
  other.reset();
  server.waitForConnections(2);
  RawClient second((*server).port(), issue("operator", "bob"));
  EXPECT_THAT(second.rest(), StartsWith("HTTP/1.1 503 ")) << "known peers have room for one";
}

TEST_F(TlsServer, HandshakesHaveABudgetOfTheirOwn) {
  options_.handshakes = 1;
  EchoServer server(options_);
  auto one = stranger(server);
  const auto refused = stranger(server);
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("too many handshakes are under way"));
  one.reset();
  server.waitForConnections(0);
  EXPECT_THAT(ask(server, issue("operator", "ann")), HasSubstr("operator:ann"));
}

/// As stranger(), from an address of its own.
UniqueFd strangerAt(uint16_t port, const char* address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in end = {};
  end.sin_family = AF_INET;
  inet_pton(AF_INET, address, &end.sin_addr);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&end), sizeof end), 0);
  inet_pton(AF_INET, "127.0.0.1", &end.sin_addr);
  end.sin_port = htons(port);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&end), sizeof end), 0);
  return socket;
}

TEST_F(TlsServer, StrangersOfManyAddressesDoNotKeepOthersOut) {
  options_.handshakes = 3;
  options_.times.handshake = Nanoseconds(3600 * kSecond);  // it is not time that ends them
  EchoServer server(options_);
  std::vector<UniqueFd> strangers;
  for (const char* address : {"127.0.0.2", "127.0.0.2", "127.0.0.3"}) {
    strangers.push_back(strangerAt((*server).port(), address));
  }
  server.waitForConnections(3);
  // Those that have some already do not take turns.
  strangers.push_back(strangerAt((*server).port(), "127.0.0.2"));
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("too many handshakes are under way"));
  strangers.push_back(strangerAt((*server).port(), "127.0.0.3"));
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("too many handshakes are under way"));
  EXPECT_THAT(ask(server, issue("host", "node1")), HasSubstr("host:node1"));
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("gave way"));
  char byte;
  EXPECT_EQ(recv(strangers.front().get(), &byte, 1, 0), 0) << "the oldest of who had most";
  // Also when nobody has more than one.
  server.waitForConnections(2);
  strangers.push_back(strangerAt((*server).port(), "127.0.0.4"));
  server.waitForConnections(3);
  EXPECT_THAT(ask(server, issue("host", "node2")), HasSubstr("host:node2"));
  EXPECT_THAT(server.handler.nextStranger(), HasSubstr("gave way"));
}

/// Holds the server's thread up when it first refuses somebody, and counts whom else it refuses
/// until it looks at a request.
class Gatekeeper final : public HttpHandler {
 public:
  Lane laneOf(const Request&) const override {
    const MutexLock lock(mutex_);
    refused_before_ = refused_;
    return Lane::kQuick;
  }
  void serve(const std::shared_ptr<Exchange>& exchange) override {
    exchange->reply({200, "text/plain", {}, ""});
  }
  Response refuse(const Refused& refused) override { return {refused.why.status, "", {}, ""}; }
  void strangerRefused(const std::string&, const std::string&) override {
    const MutexLock lock(mutex_);
    ++refused_;
    changed_.notifyAll();
    while (!open_) changed_.wait(mutex_);
  }

  void waitForRefusal() {
    const MutexLock lock(mutex_);
    while (refused_ == 0) changed_.wait(mutex_);
  }
  void open() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notifyAll();
  }
  size_t refusedBefore() const {
    const MutexLock lock(mutex_);
    return refused_before_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool open_ TP_GUARDED_BY(mutex_) = false;
  size_t refused_ TP_GUARDED_BY(mutex_) = 0;
  mutable size_t refused_before_ TP_GUARDED_BY(mutex_) = 0;
};

TEST_F(TlsServer, WhoIsConnectedDoesNotWaitForAllWhoCome) {
  constexpr size_t kMany = 200;
  options_.handshakes_of_one = 1;
  options_.times.handshake = Nanoseconds(3600 * kSecond);
  Gatekeeper handler;
  const auto server = HttpServer::start(options_, handler);
  ASSERT_TRUE(server) << server.error().text();
  const uint16_t port = (*server)->port();
  RawClient known(port, issue("host", "node1"));
  EXPECT_THAT(known.ask(getRequest("/")), StartsWith("HTTP/1.1 200 "));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 2; ++i) strangers.push_back(strangerAt(port, "127.0.0.2"));
  handler.waitForRefusal();
  while (strangers.size() < kMany) strangers.push_back(strangerAt(port, "127.0.0.2"));
  known.send(getRequest("/"));
  handler.open();
  EXPECT_THAT(known.answer(), StartsWith("HTTP/1.1 200 "));
  EXPECT_LT(handler.refusedBefore(), kMany / 2);
}

TEST_F(TlsServer, ACertificateThatRunsOutEndsItsConnection) {
  EchoServer server(options_);
  bool served = false;
  // A machine that is too slow for so brief a one gets one that is good for longer.
  for (int seconds = 1; !served && seconds <= 64; seconds *= 2) {
    RawClient client((*server).port(), issue("host", "brief" + std::to_string(seconds), seconds));
    std::string answer = client.connected() ? client.ask(getRequest("/")) : "";
    while (answer.starts_with("HTTP/1.1 200")) {
      served = true;
      poll(nullptr, 0, 10);
      answer = client.ask(getRequest("/"));
    }
    if (!served) continue;
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 "));
    EXPECT_THAT(answer, HasSubstr("expired"));
  }
  EXPECT_TRUE(served);
}

TEST_F(TlsServer, AReloadThatCannotBeReadChangesNothing) {
  EchoServer server(options_);
  const ClientFiles ann = issue("operator", "ann");
  const std::string& certificate = options_.tcp->tls.certificate;
  std::filesystem::rename(certificate, certificate + ".away");
  const Status status = (*server).reloadTls();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().text(), HasSubstr("manager.crt"));
  EXPECT_THAT(ask(server, ann), HasSubstr("operator:ann"));
}

TEST_F(TlsServer, BadFilesAreNamedAtTheStart) {
  EchoHandler handler;
  for (std::string TlsFiles::*file :
       {&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::ca, &TlsFiles::crl}) {
    ServerOptions options = options_;
    options.tcp->tls.*file = scratch_ / "missing.pem";
    const auto server = HttpServer::start(options, handler);
    ASSERT_FALSE(server);
    EXPECT_EQ(server.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(server.error().text(), HasSubstr("missing.pem"));
    EXPECT_THAT(server.error().text(), HasSubstr("No such file"));
  }
}

TEST_F(TlsServer, TheAuthorityKeepsItsBooks) {
  EXPECT_EQ(ca::Authority::init(folder(), kDay).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(ca::Authority::open(scratch_ / "nowhere").error().code(), ErrorCode::kNotFound);
  const auto first = ca_.issue({"host", "node1", {}, kDay}, folder());
  ASSERT_TRUE(first);
  EXPECT_EQ(ca_.issue({"host", "node1", {}, kDay}, folder()).error().code(), ErrorCode::kConflict);
  for (const ca::Issue& bad : std::vector<ca::Issue>{{"wizard", "a", {}, kDay},
                                                     {"host", "", {}, kDay},
                                                     {"host", "a/b", {}, kDay},
                                                     {"host", "a:b", {}, kDay},
                                                     {"host", "../a", {}, kDay},
                                                     {"server", "s", {}, kDay},
                                                     {"server", "s", {"a,URI:x"}, kDay},
                                                     {"server", "s", {""}, kDay}}) {
    const auto issued = ca_.issue(bad, folder());
    ASSERT_FALSE(issued) << bad.kind << " " << bad.name;
    EXPECT_EQ(issued.error().code(), ErrorCode::kInvalidArgument) << issued.error().text();
  }
  EXPECT_EQ(ca_.revoke("host:nobody").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(*ca_.revoke(first->serial), 1);
  EXPECT_EQ(*ca_.revoke("host:node1"), 0) << "it is already";
  const auto entries = ca_.list();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_FALSE((*entries)[0].revoked);
  EXPECT_TRUE((*entries)[1].revoked);
  struct stat about;
  ASSERT_EQ(stat(first->key.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST(Authority, MakesTheFolderAndIndexesNothingThatItCannotWrite) {
  Scratch scratch;
  const auto authority = ca::Authority::init(scratch / "ca", kDay);
  ASSERT_TRUE(authority) << authority.error().text();
  const std::string out = scratch / "hosts/node1";
  ASSERT_TRUE(authority->issue({"host", "node1", {}, kDay}, out));
  EXPECT_TRUE(std::filesystem::exists(out + "/node1.key"));
  EXPECT_FALSE(authority->issue({"host", "node2", {}, kDay}, out + "/node1.key/below"));
  EXPECT_EQ(authority->list()->size(), 1u);
}

std::string textOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string bundle(const std::string& path, const std::vector<std::string>& files) {
  std::ofstream out(path);
  for (const std::string& file : files) out << textOf(file);
  return path;
}

TEST_F(TlsServer, TheRootCanBeReplacedWhileAgentsOfBothGetIn) {
  const auto next = ca::Authority::init(scratch_ / "next", 30 * kDay);
  ASSERT_TRUE(next) << next.error().text();
  const std::string roots =
      bundle(scratch_ / "roots.crt", {ca_.certificatePath(), next->certificatePath()});
  const auto of = [&](const ca::Authority& authority, const std::string& name) {
    const auto issued = authority.issue({"host", name, {}, kDay}, scratch_ / "hosts");
    EXPECT_TRUE(issued) << issued.error().text();
    return ClientFiles{roots, issued->certificate, issued->key};
  };
  const ClientFiles old_host = of(ca_, "old"), new_host = of(*next, "new");
  const ClientFiles old_gone = of(ca_, "oldgone"), new_gone = of(*next, "newgone");
  ASSERT_TRUE(ca_.revoke("host:oldgone"));
  ASSERT_TRUE(next->revoke("host:newgone"));
  // In either order of the lists.
  for (const bool first : {true, false}) {
    options_.tcp->tls.ca = roots;
    options_.tcp->tls.crl =
        bundle(scratch_ / "lists.pem", first ? std::vector{ca_.crlPath(), next->crlPath()}
                                             : std::vector{next->crlPath(), ca_.crlPath()});
    EchoServer server(options_);
    EXPECT_THAT(ask(server, old_host), HasSubstr("by host:old"));
    EXPECT_THAT(ask(server, new_host), HasSubstr("by host:new"));
    EXPECT_EQ(ask(server, old_gone), "");
    EXPECT_EQ(ask(server, new_gone), "");
  }
}

TEST_F(TlsServer, ARenewedCertificateIsForTheSameKeyAndNames) {
  const ClientFiles host = issue("host", "node1", -10);
  EchoServer server(options_);
  EXPECT_EQ(ask(server, host), "");
  const auto renewed = ca_.renew(host.certificate, kDay);
  ASSERT_TRUE(renewed) << renewed.error().text();
  EXPECT_THAT(ask(server, host), HasSubstr("by host:node1"));
  // The server's keeps the hosts that it is reached by.
  ASSERT_TRUE(ca_.renew(options_.tcp->tls.certificate, 2 * kDay));
  EchoServer again(options_);
  EXPECT_THAT(ask(again, host), HasSubstr("by host:node1"));
  // Both of the host's are in the books.
  EXPECT_EQ(*ca_.revoke("host:node1"), 2);
  EXPECT_EQ(ca_.renew(host.certificate, kDay).error().code(), ErrorCode::kRefused);
  Scratch other;
  const auto foreign = ca::Authority::init(other / "ca", kDay);
  EXPECT_EQ(foreign->renew(host.certificate, kDay).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ca_.renew(host.key, kDay).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(TlsServer, ARequestIsSignedForWhoTheAuthoritySays) {
  const std::string key = scratch_ / "own.key", request = scratch_ / "own.csr";
  const std::string make =
      "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
      "-subj /CN=root -addext subjectAltName=URI:urn:tidepool:admin:root "
      "-keyout " +
      key + " -out " + request + " 2>/dev/null";
  ASSERT_EQ(system(make.c_str()), 0);
  const auto issued = ca_.sign({"host", "node9", {}, kDay}, request, scratch_ / "out");
  ASSERT_TRUE(issued) << issued.error().text();
  EXPECT_EQ(issued->key, "");
  EchoServer server(options_);
  EXPECT_THAT(ask(server, {ca_.certificatePath(), issued->certificate, key}),
              HasSubstr("by host:node9"));
  // What is not signed with its own key, or is no request, leaves nothing behind.
  std::string text = textOf(request);
  const size_t middle = text.size() / 2;
  text[middle] = text[middle] == 'A' ? 'B' : 'A';
  std::ofstream(request) << text;
  for (const std::string& bad : {request, key, std::string(scratch_ / "nowhere")}) {
    EXPECT_EQ(ca_.sign({"host", "node8", {}, kDay}, bad, scratch_ / "out").error().code(),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(ca_.list()->size(), 2u);
}

}  // namespace
}  // namespace tidepool::api
