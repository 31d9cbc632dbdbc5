// SPDX-License-Identifier: Apache-2.0
// A memory server's ports against who has not shown yet what lets them in: no time by the byte, no
// place that another needs, no log without end, and no descriptors left.
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/device/drivers.h"
#include "fabricmgr/memserver/control_server.h"
#include "tests/fabricmgr/lender.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::memserver {
namespace {

namespace control = fabric::control;
using fabric::codeOf;
using fabric::kLong;
using fabric::managerTls;
using fabric::must;
using fabric::shakeHands;

constexpr Nanoseconds kShort(200'000'000);

Nanoseconds soon() { return kMonotonicClock.now() + kLong; }

/// What the process logs while one of these is there.
class CapturedLog {
 public:
  CapturedLog() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", sink_)); }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  size_t count(const std::string& text) const {
    const auto lines = sink_->last_formatted();
    return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.find(text) != std::string::npos;
    }));
  }

 private:
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

struct Lender {
  explicit Lender(const ControlLimits& limits = {}) {
    ServerOptions options;
    options.size = Bytes(kMiB);
    options.lends_to = LendsTo::kByOrders;
    server = must(Server::start(options));
    orders = must(ControlServer::start(*server, "127.0.0.1:0", fabric::memserverTls(), limits));
  }
  Result<std::shared_ptr<fabric::DeviceDriver>> manager() const {
    fabric::Device device;
    device.name = "m1";
    device.address = "127.0.0.1:" + std::to_string(orders->port());
    return fabric::openMemserver(device, *leadership, managerTls(), kLong);
  }

  std::unique_ptr<Server> server;
  std::unique_ptr<ControlServer> orders;
  const std::unique_ptr<fabric::Leadership> leadership =
      std::make_unique<fabric::Leadership>(fabric::leaderOf(1));
};

sockaddr_in addressOf(const char* host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
  return address;
}

/// A connection to the loopback's `port` that comes from `host`.
std::unique_ptr<Connection> dial(uint16_t port, const char* host = "127.0.0.1") {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in from = addressOf(host, 0), to = addressOf("127.0.0.1", port);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return adoptTcp(std::move(socket));
}

bool ends(Connection& connection) {
  std::byte any[1];
  return codeOf(receiveAll(connection, any, soon())) == ErrorCode::kUnreachable;
}

/// Sends it a byte at a time. True if the other side hangs up before all is sent.
bool endsWhileSending(Connection& connection, const std::string& bytes) {
  for (const char& byte : bytes) {
    pollfd ended = {connection.fd(), POLLIN, 0};
    if (poll(&ended, 1, 10) == 1) return true;
    const iovec part = {const_cast<char*>(&byte), 1};
    if (!connection.send({&part, 1}, Wait::kUntilTimeout)) return true;
  }
  return false;
}

std::string longFrame() {
  control::Request request{control::Opcode::kAttach, fabric::RegionId(1), Epoch(1), 0, 0, {}, {}};
  request.extents.resize(256);
  return control::encode(request);
}

TEST(ControlPort, AByteNowAndThenGainsNoTime) {
  const Lender lender({.handshake = kShort});
  const auto stranger = dial(lender.orders->port());
  // A record of a handshake that is longer than what comes of it.
  EXPECT_TRUE(endsWhileSending(*stranger, "\x16\x03\x01\x10" + std::string(4096, '\x01')));
}

/// Holds back what is sent until it is let through, at most so many bytes of it at a time.
class Throttle final : public Connection {
 public:
  explicit Throttle(std::unique_ptr<Connection> wire) : wire_(std::move(wire)) {}
  Result<size_t> send(std::span<const iovec> parts, Wait wait) override {
    if (!holds) return wire_->send(parts, wait);
    held.append(static_cast<const char*>(parts[0].iov_base), parts[0].iov_len);
    return parts[0].iov_len;
  }
  Result<size_t> receive(std::span<const iovec> parts, Wait wait) override {
    return wire_->receive(parts, wait);
  }
  int fd() const override { return wire_->fd(); }
  Connection& wire() { return *wire_; }
  bool holds = false;
  std::string held;

 private:
  const std::unique_ptr<Connection> wire_;
};

TEST(ControlPort, AManagerMayBeSilentButNotInAFrame) {
  const Lender lender({.handshake = kShort, .frame = kShort});
  for (const bool in_tls : {false, true}) {
    auto throttle = std::make_unique<Throttle>(dial(lender.orders->port()));
    Throttle& wire = *throttle;
    TlsConnection manager(std::move(throttle), managerTls()->now(), TlsConnection::Side::kClient,
                          "urn:tidepool:memserver:m1");
    must(manager.handshake(soon()));
    must(control::receiveHello(manager, soon()));
    for (int i = 0; i < 2; ++i) {
      must(control::sendFrame(manager, control::encode(control::Request{}), soon()));
      must(control::receiveFrame(manager, control::kAnswerMagic, soon()));
      pollfd nothing = {manager.fd(), POLLIN, 0};
      EXPECT_EQ(poll(&nothing, 1, 500), 0) << "more than either limit";
    }
    if (in_tls) {  // whole records, each with a byte
      const std::string frame = longFrame();
      wire.holds = true;
      for (const char& byte : frame) must(control::sendFrame(manager, {&byte, 1}, soon()));
    } else {  // one record, of which a frame would be a part
      wire.holds = true;
      must(control::sendFrame(manager, longFrame(), soon()));
    }
    EXPECT_TRUE(endsWhileSending(wire.wire(), wire.held));
  }
}

TEST(ControlPort, OrdersThatComeTogetherAreAllAnswered) {
  const Lender lender;
  const auto manager = shakeHands(lender.orders->port());
  must(control::receiveHello(*manager, soon()));
  std::string both;
  for (int i = 0; i < 2; ++i) both += control::encode(control::Request{});
  must(control::sendFrame(*manager, both, soon()));  // in one record
  for (int i = 0; i < 2; ++i) must(control::receiveFrame(*manager, control::kAnswerMagic, soon()));
}

TEST(ControlPort, AServerThatTricklesDoesNotHoldTheManager) {
  const UniqueFd listener = must(listenTcp(loopback(0)));
  const uint16_t port = must(boundPort(listener.get()));
  std::thread server([&] {
    pollfd waiting = {listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 20'000), 1);
    const auto peer = adoptTcp(UniqueFd(accept(listener.get(), nullptr, nullptr)));
    std::byte hello[16 * 1024];
    const iovec part = {hello, sizeof hello};
    EXPECT_TRUE(peer->receive({&part, 1}, Wait::kUntilTimeout));
    EXPECT_TRUE(endsWhileSending(*peer, "\x16\x03\x03\x10" + std::string(4096, '\x02')));
  });
  fabric::Device device;
  device.address = "127.0.0.1:" + std::to_string(port);
  fabric::Leadership leadership(fabric::leaderOf(1));
  EXPECT_EQ(codeOf(fabric::openMemserver(device, leadership, managerTls(), kShort)),
            ErrorCode::kTimedOut);
  server.join();
}

TEST(ControlPort, StrangersDoNotKeepTheManagerOut) {
  const CapturedLog log;
  const Lender lender({.newcomers = 6, .newcomers_of_one = 4});
  std::vector<std::unique_ptr<Connection>> strangers;
  for (const char* host : {"127.0.0.1", "127.0.0.2", "127.0.0.3"}) {
    for (int i = 0; i < 8; ++i) {
      strangers.push_back(dial(lender.orders->port(), host));
    }
  }
  EXPECT_TRUE(ends(*strangers.front())) << "the oldest made room";
  const auto manager = must(lender.manager());
  must(manager->inspect());
  for (int i = 0; i < 40; ++i) strangers.push_back(dial(lender.orders->port(), "127.0.0.2"));
  must(manager->inspect());
  EXPECT_TRUE(lender.manager()) << "and comes in again";
  EXPECT_GT(log.count("to make room"), 0u);
}

TEST(ControlPort, OfManagersTheOneThatWasSilentLongestMakesRoom) {
  const Lender lender({.managers = 2});
  const auto first = must(lender.manager()), second = must(lender.manager());
  must(first->inspect());
  const auto third = must(lender.manager());
  must(first->inspect());
  EXPECT_EQ(codeOf(second->inspect()), ErrorCode::kUnreachable);
  must(third->inspect());
}

TEST(ControlPort, WithoutDescriptorsItWaitsForSome) {
  const CapturedLog log;
  const Lender lender;
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(socket.get());
  ASSERT_EQ(close(next), 0);
  const rlimit none_left = {static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  const sockaddr_in to = addressOf("127.0.0.1", lender.orders->port());
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  const std::string said = "cannot accept a control connection: Too many open files";
  for (int i = 0; i < 2000 && log.count(said) == 0; ++i) poll(nullptr, 0, 10);
  EXPECT_GT(log.count(said), 0u);
  const Nanoseconds used = readClock(CLOCK_PROCESS_CPUTIME_ID);
  poll(nullptr, 0, 500);
  EXPECT_LT(readClock(CLOCK_PROCESS_CPUTIME_ID) - used, Nanoseconds(250'000'000)) << "it spins";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  TlsConnection manager(adoptTcp(std::move(socket)), managerTls()->now(),
                        TlsConnection::Side::kClient, "urn:tidepool:memserver:m1");
  EXPECT_TRUE(manager.handshake(soon()));
  EXPECT_TRUE(control::receiveHello(manager, soon()));
}

TEST(DataPort, StrangersDoNotKeepClientsOut) {
  ServerOptions options;
  options.size = Bytes(kMiB);
  options.newcomers = 8;
  options.handshake_limit = kLong * 100;  // it is not time that ends them
  const auto server = must(Server::start(options));
  std::vector<std::unique_ptr<Connection>> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(dial(server->port()));
  EXPECT_TRUE(ends(*strangers.front()));
  RawClient client(server->port());
  EXPECT_TRUE(client.greet({}));
}

class NewcomersTest : public testing::Test {
 protected:
  /// One that comes from 10.0.0.`host`; its other end is kept.
  int come(uint8_t host) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    kept_.emplace_back(pair[0]);
    kept_.emplace_back(pair[1]);
    newcomers_.enter(pair[0], "10.0.0." + std::to_string(host));
    return pair[1];
  }
  static bool hasLost(int other_end) {
    char any;
    return recv(other_end, &any, 1, MSG_DONTWAIT) == 0;
  }

  std::vector<UniqueFd> kept_;
  Newcomers newcomers_{6, 3};
};

TEST_F(NewcomersTest, WhoHasManyMakesRoomForWhoHasFew) {
  const int many[] = {come(1), come(1), come(1)};
  const int few[] = {come(2), come(2), come(3)};
  const int another = come(4);
  EXPECT_TRUE(hasLost(many[0]));
  const int last = come(2);
  EXPECT_TRUE(hasLost(many[1]) || hasLost(few[0])) << "two each: the older of the most";
  for (const int one : {many[2], few[2], another, last}) EXPECT_FALSE(hasLost(one));
}

TEST_F(NewcomersTest, ANetworkThatHasItsShareTakesFromItself) {
  const int ones[] = {come(1), come(1), come(1), come(1)};
  EXPECT_TRUE(hasLost(ones[0]));
  EXPECT_FALSE(hasLost(ones[1]));
  newcomers_.leave(kept_[2].get());  // the second one is let in
  come(1);
  for (int i = 1; i < 4; ++i) EXPECT_FALSE(hasLost(ones[i])) << i;
}

TEST(ThrottledLog, SaysHowMuchItLeavesOut) {
  const CapturedLog captured;
  fabric::FakeClock clock(5'000'000'000);
  ThrottledLog log(clock);
  for (int i = 0; i < 1000; ++i) log.warn("a stranger");
  EXPECT_EQ(captured.count("a stranger"), ThrottledLog::kMost);
  log.sayRest();
  EXPECT_EQ(captured.count("left out"), 0u) << "the second is not over";
  clock.advance(Nanoseconds(1'000'000'000));
  log.sayRest();
  log.sayRest();
  EXPECT_EQ(captured.count("990 more such warnings were left out"), 1u);
  log.warn("a stranger");
  EXPECT_EQ(captured.count("a stranger"), ThrottledLog::kMost + 1);
}

}  // namespace
}  // namespace tidepool::memserver
