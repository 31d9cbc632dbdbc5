// SPDX-License-Identifier: Apache-2.0
// Who may give orders to a memory server, and to which one a manager gives them: certificates of
// both sides, each way in which one is not good enough, and what was recorded on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <thread>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/device/drivers.h"
#include "tests/fabricmgr/lender.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::fabric {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Nanoseconds soon() { return kMonotonicClock.now() + kLong; }

/// A memory server with a region, whose log is read.
class ControlTls : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", sink_));
    start();
    driver = must(open(manager_tls));
    must(driver->attach(grant));
  }
  ~ControlTls() override {
    orders.reset();
    spdlog::set_default_logger(before_);
  }
  void start() {
    memserver::ServerOptions options;
    options.size = Bytes(64 * kGrain);
    options.lends_to = memserver::LendsTo::kByOrders;
    server = must(memserver::Server::start(options));
    orders = must(memserver::ControlServer::start(*server, "127.0.0.1:0", server_tls));
  }
  Result<std::shared_ptr<DeviceDriver>> open(const std::shared_ptr<TlsInUse>& tls,
                                             const std::string& name = "m1") {
    Device device;
    device.name = name;
    device.address = "127.0.0.1:" + std::to_string(orders->port());
    return openMemserver(device, leadership, tls, kLong);
  }
  /// It is refused, says why, and so does the server; the region is as it was.
  void expectRefused(const std::shared_ptr<TlsInUse>& tls, const std::string& says,
                     const std::string& logs) {
    const auto opened = open(tls);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), ErrorCode::kPermission);
    EXPECT_THAT(opened.error().text(), AllOf(HasSubstr("memory server m1: "), HasSubstr(says)));
    EXPECT_THAT(logged(logs), HasSubstr(logs));
    const auto held = must(driver->inspect());
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].grant.extents, grant.extents);
  }
  /// The log, once it has that, or after a while.
  std::string logged(const std::string& text) const {
    std::string all;
    for (int i = 0; i < 2000; ++i) {
      all.clear();
      for (const std::string& line : sink_->last_formatted()) all += line;
      if (all.find(text) != std::string::npos) break;
      poll(nullptr, 0, 10);
    }
    return all;
  }

  const Certificates& ca = Certificates::ofTheTests();
  const Certificates own;  // with a list of revoked ones that no other test has
  const std::shared_ptr<TlsInUse> manager_tls = own.tls("manager", "main");
  const TlsFiles server_files = own.files("memserver", "m1");
  std::shared_ptr<TlsInUse> server_tls = must(TlsInUse::load(server_files));
  const Grant grant{RegionId(1), Epoch(1), GrantState::kGranted, {{DeviceId(), 0, Bytes(kGrain)}}};
  Leadership leadership{leaderOf(1)};
  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<memserver::ControlServer> orders;
  std::shared_ptr<DeviceDriver> driver;

 private:
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
  std::shared_ptr<spdlog::logger> before_;
};

TEST_F(ControlTls, NobodyButAManagerIsObeyed) {
  for (const char* kind : {"host", "operator", "admin"}) {
    expectRefused(
        own.tls(kind, "n1"), "it is for something else",
        std::string("it has to be for urn:tidepool:manager:NAME (it says it is ") + kind + ":n1)");
  }
  expectRefused(own.tls("memserver", "m1"), "it is for something else", "purpose");
  expectRefused(own.tls("server", "api"), "it is for something else", "purpose");
}

TEST_F(ControlTls, AManagerOfAnotherAuthorityIsNotObeyed) {
  TlsFiles files = ca.files("manager", "main");
  files.ca = own.files("host", "any").ca;  // it believes the server
  files.crl = "";
  expectRefused(must(TlsInUse::load(files)), "it is of a CA that the other side does not know",
                "(it says it is manager:main)");
}

TEST_F(ControlTls, ARevokedManagerIsCutOff) {
  const auto other = own.tls("manager", "other");
  own.revoke("manager:other");
  must(open(other));  // nobody has read the list yet
  must(server_tls->reload());
  expectRefused(other, "it is revoked: issue another one", "certificate revoked");
  own.revoke("manager:main");
  must(server_tls->reload());
  orders->recheck();
  EXPECT_THAT(logged("closed: certificate revoked"), HasSubstr("closed: certificate revoked"));
  EXPECT_FALSE(driver->inspect());
}

TEST_F(ControlTls, AnExpiredManagerIsRefused) {
  expectRefused(must(TlsInUse::load(own.files("manager", "late", -3 * 86'400 - 60))),
                "it has expired here", "the certificate of manager late expired 3 days ago");
}

TEST_F(ControlTls, AServerTellsOfItsCertificateThatIsAboutToEndWhileItRuns) {
  orders.reset();
  constexpr int64_t kMonth = 30 * 86'400;
  server_tls = must(TlsInUse::load(own.files("memserver", "m1", kMonth + 2)));
  start();
  const std::string says = "the certificate of memory server m1 ends in ";
  EXPECT_THAT(logged(says), HasSubstr(says));
}

TEST_F(ControlTls, AReloadShowsNewCertificatesToBothSides) {
  const auto endOf = [&] { return manager_tls->peers(std::time(nullptr)).at(0).end; };
  const std::time_t before = endOf();
  own.renew(server_files, 2 * 86'400);
  must(server_tls->reload());
  orders->recheck();
  must(driver->inspect());
  EXPECT_EQ(endOf(), before) << "it goes on as it began";
  must(manager_tls->reload());
  EXPECT_EQ(must(driver->inspect()).size(), 1u);
  EXPECT_GE(endOf() - before, 86'400);
}

TEST_F(ControlTls, WhoShowsNoCertificateOrSpeaksNoTls13IsRefused) {
  for (const bool old : {false, true}) {
    const auto wire = must(connectTcp(loopback(orders->port()), kLong));
    const SslPointer<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
    if (old) SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
    const SslPointer<SSL> ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), wire->fd());
    char any;
    EXPECT_FALSE(SSL_connect(ssl.get()) == 1 && SSL_read(ssl.get(), &any, 1) > 0);
    const std::string says = old ? "no TLS 1.3 with the other side"
                                 : "shows no certificate: `fabricmgr ca issue manager NAME` makes";
    EXPECT_THAT(logged(says), HasSubstr(says));
  }
}

TEST_F(ControlTls, AManagerTalksToThatDeviceAlone) {
  const auto other = open(manager_tls, "m2");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kPermission);
  EXPECT_THAT(other.error().text(), HasSubstr("has to be for urn:tidepool:memserver:m2 (it says it "
                                              "is memserver:m1)"));
  TlsFiles files = own.files("manager", "third");
  files.ca = ca.files("host", "any").ca;
  files.crl = "";
  EXPECT_EQ(codeOf(open(must(TlsInUse::load(files)))), ErrorCode::kPermission) << "another CA's";
}

TEST_F(ControlTls, ARevokedMemoryServerIsNotAskedAgain) {
  own.revoke("memserver:m1");
  must(driver->inspect());
  must(manager_tls->reload());
  EXPECT_EQ(codeOf(driver->inspect()), ErrorCode::kPermission);
  EXPECT_EQ(codeOf(open(manager_tls)), ErrorCode::kPermission);
}

TEST_F(ControlTls, WhatSpeaksNoTlsIsSaidToBeNoControlPort) {
  const UniqueFd listener = must(listenTcp(loopback(0)));
  std::thread old([&] {
    pollfd waiting = {listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 20'000), 1);
    const auto peer = adoptTcp(UniqueFd(accept(listener.get(), nullptr, nullptr)));
    const std::string hello = "TPH1" + std::string(28, '\2');
    EXPECT_TRUE(sendAll(*peer, std::as_bytes(std::span(hello)), soon()));
    std::byte any[4096];
    (void)receiveAll(*peer, any, soon());
  });
  Device device;
  device.name = "m1";
  device.address = "127.0.0.1:" + std::to_string(must(boundPort(listener.get())));
  const auto opened = openMemserver(device, leadership, manager_tls, kLong);
  old.join();
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().text(), HasSubstr("is that a control port"));
}

/// Keeps what is sent.
class Recorder final : public Connection {
 public:
  Recorder(std::unique_ptr<Connection> wire, std::string* sent)
      : wire_(std::move(wire)), sent_(sent) {}
  Result<size_t> send(std::span<const iovec> parts, Wait wait) override {
    const auto taken = wire_->send(parts, wait);
    if (taken) sent_->append(static_cast<const char*>(parts[0].iov_base), *taken);
    return taken;
  }
  Result<size_t> receive(std::span<const iovec> parts, Wait wait) override {
    return wire_->receive(parts, wait);
  }
  int fd() const override { return wire_->fd(); }

 private:
  const std::unique_ptr<Connection> wire_;
  std::string* const sent_;
};

TEST_F(ControlTls, ARecordedSessionDoesNothingAgain) {
  std::string sent;
  {
    TlsConnection manager(
        std::make_unique<Recorder>(must(connectTcp(loopback(orders->port()), kLong)), &sent),
        manager_tls->now(), TlsConnection::Side::kClient, "urn:tidepool:memserver:m1");
    must(manager.handshake(soon()));
    must(control::receiveHello(manager, soon()));
    using control::Opcode;
    for (const control::Request& request :
         {control::Request{.opcode = Opcode::kLead, .leader = leaderOf(1)},
          control::Request{.opcode = Opcode::kRevoke, .region = RegionId(1), .epoch = Epoch(2)}}) {
      must(control::sendFrame(manager, control::encode(request), soon()));
      must(control::receiveFrame(manager, control::kAnswerMagic, soon()));
    }
  }
  EXPECT_TRUE(must(driver->inspect()).empty()) << "it was dropped, the first time";
  must(driver->attach(grant));
  const auto again = must(connectTcp(loopback(orders->port()), kLong));
  must(sendAll(*again, std::as_bytes(std::span(sent)), soon()));
  shutdown(again->fd(), SHUT_WR);
  std::byte any[1 << 16];
  EXPECT_FALSE(receiveAll(*again, any, soon())) << "it is closed";
  EXPECT_EQ(must(driver->inspect()).size(), 1u);
}

}  // namespace
}  // namespace tidepool::fabric
