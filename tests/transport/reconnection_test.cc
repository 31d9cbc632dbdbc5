// SPDX-License-Identifier: Apache-2.0
// Connections that break between a client and a memory server that stays: every request ends once
// and well, no byte is lost, and nothing of an old connection comes after the new one.
#include "runtime/transport/reconnection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kTimeout(5'000'000'000);
constexpr Nanoseconds kLong(120'000'000'000);
constexpr uint64_t kPages = 64;

class ReconnectionTest : public ::testing::Test {
 protected:
  void SetUp() override { start(1); }
  void start(unsigned threads) {
    cutter_.reset();
    memserver::ServerOptions options;
    options.size = Bytes(kPages * kPageSize);
    options.threads = threads;
    options.grace = Nanoseconds(1);  // what broke is kept for longer all the same
    auto server = memserver::Server::start(options);
    ASSERT_TRUE(server);
    server_ = std::move(*server);
    cutter_ = std::make_unique<WireCutter>(server_->port());
  }
  std::unique_ptr<RemoteClient> connect(Nanoseconds reconnect = kLong,
                                        Nanoseconds timeout = kTimeout) {
    wire::ClientHello hello;
    hello.size = Bytes(kPages * kPageSize);
    auto client = RemoteClient::connect(cutter_->endpoint(), hello,
                                        {.timeout = timeout, .reconnect = reconnect});
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  ErrorCode write(RemoteClient& client, uint64_t page, uint8_t value) {
    memset(page_.data(), value, kPageSize);
    EXPECT_TRUE(client.submitWrite(1, Bytes(page * kPageSize), page_));
    return client.wait().error;
  }
  /// The value that all of a page's bytes have; -1: they differ, or there is an error.
  int read(RemoteClient& client, uint64_t page) {
    memset(page_.data(), 0xee, kPageSize);
    EXPECT_TRUE(client.submitRead(2, Bytes(page * kPageSize), page_));
    if (!client.wait().ok()) return -1;
    for (const std::byte byte : page_) {
      if (byte != page_[0]) return -1;
    }
    return static_cast<int>(page_[0]);
  }

  std::unique_ptr<memserver::Server> server_;
  std::unique_ptr<WireCutter> cutter_;
  alignas(kPageSize) std::array<std::byte, kPageSize> page_;
};

TEST_F(ReconnectionTest, ACutIsMendedAndBytesAreStillThere) {
  const auto client = connect();
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  for (int i = 0; i < 5; ++i) {
    cutter_->cut();
    EXPECT_EQ(read(*client, 3), 7);
    cutter_->cut();
    EXPECT_EQ(write(*client, 4, static_cast<uint8_t>(i)), ErrorCode{});
    EXPECT_EQ(read(*client, 4), i);
  }
  EXPECT_FALSE(client->failed());
}

TEST_F(ReconnectionTest, WithoutBeingAskedForItIsLost) {
  const auto client = connect(Nanoseconds(0));
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  cutter_->cut();
  EXPECT_EQ(read(*client, 3), -1);
  EXPECT_TRUE(client->failed());
}

TEST_F(ReconnectionTest, APauseLongerThanTheTimeoutIsOnlyAPause) {
  const auto client = connect(kLong, Nanoseconds(50'000'000));
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  cutter_->pause(true);
  ASSERT_TRUE(client->submitRead(9, Bytes(3 * kPageSize), page_));
  FetchCompletion done;
  const Nanoseconds until = kMonotonicClock.now() + Nanoseconds(400'000'000);
  while (kMonotonicClock.now() < until) {
    ASSERT_EQ(client->poll({&done, 1}), 0u);
    pollfd waiting = {client->fd(), client->events(), 0};
    (void)poll(&waiting, 1, static_cast<int>(client->timeToDeadline().value() / 1'000'000 + 1));
  }
  cutter_->pause(false);
  done = client->wait();
  EXPECT_EQ(done.tag, 9u);
  EXPECT_TRUE(done.ok());
  EXPECT_EQ(page_[100], std::byte{7});
}

TEST_F(ReconnectionTest, AWriteThatTheNetworkHeldBackComesNoMore) {
  // Both by one worker of the server's, and by two.
  for (const unsigned threads : {1u, 2u}) {
    start(threads);
    const auto client = connect(kLong, Nanoseconds(200'000'000));
    ASSERT_EQ(write(*client, 3, 1), ErrorCode{});
    cutter_->hold(true);
    const uint64_t before = cutter_->taken();
    std::array<std::byte, kPageSize> late;
    late.fill(std::byte{2});
    ASSERT_TRUE(client->submitWrite(5, Bytes(3 * kPageSize), late));
    ASSERT_TRUE(client->flush());
    while (cutter_->taken() < before + wire::kRequestSize + kPageSize) std::this_thread::yield();
    cutter_->cutClients();
    ASSERT_TRUE(client->wait().ok()) << "sent again";
    ASSERT_EQ(write(*client, 3, 9), ErrorCode{});
    const auto& counters = server_->counters();
    const uint64_t served = counters.requests;
    cutter_->hold(false);  // the old connection's bytes go on to the server
    while (counters.connections > 1 && counters.requests == served) std::this_thread::yield();
    EXPECT_EQ(counters.requests, served) << "by " << threads << ", of the old connection";
    EXPECT_EQ(read(*client, 3), 9);
  }
}

/// What a client has noted, in its order: numbers, and 0 for an end.
struct Noted final : WriteRecord {
  struct Log {
    std::vector<uint32_t> begun;  // 0: all have ended
    int given_up = 0;
  };
  explicit Noted(Log& into) : log(into) {}
  void begin(uint32_t connection) override { log.begun.push_back(connection); }
  void end() override { log.begun.push_back(0); }
  void giveUp() override { ++log.given_up; }
  Log& log;
};

TEST_F(ReconnectionTest, WritesUnderWayAreNotedWithTheirConnection) {
  Noted::Log log;
  auto client = connect();
  const uint32_t number = client->region().connection;
  client->recordWrites(std::make_unique<Noted>(log));
  EXPECT_NE(read(*client, 3), -1);
  EXPECT_TRUE(log.begun.empty()) << "that was no write";
  ASSERT_EQ(write(*client, 3, 1), ErrorCode{});
  EXPECT_EQ(log.begun, (std::vector<uint32_t>{number, 0}));
  log.begun.clear();
  cutter_->hold(true);
  ASSERT_TRUE(client->submitWrite(5, Bytes(3 * kPageSize), page_));
  ASSERT_TRUE(client->submitRead(6, Bytes(4 * kPageSize), page_));
  EXPECT_EQ(log.begun, std::vector<uint32_t>{number}) << "before it is sent";
  ASSERT_TRUE(client->flush());
  cutter_->cutClients();
  ASSERT_TRUE(client->wait().ok());
  ASSERT_EQ(log.begun.size(), 3u);
  EXPECT_NE(log.begun[1], number) << "of the connection on which it was sent again";
  EXPECT_NE(log.begun[1], 0u);
  EXPECT_EQ(log.begun[2], 0u);
  ASSERT_TRUE(client->wait().ok());
  EXPECT_EQ(log.begun.size(), 3u);
  client.reset();
  EXPECT_EQ(log.given_up, 0);
}

TEST_F(ReconnectionTest, WritesThatFailAreGivenUpBeforeThatIsTold) {
  for (const bool told : {true, false}) {
    Noted::Log log;
    auto client = connect(Nanoseconds(0));
    client->recordWrites(std::make_unique<Noted>(log));
    cutter_->hold(true);
    ASSERT_TRUE(client->submitWrite(5, Bytes(), page_));
    cutter_->cut();
    if (told) {
      EXPECT_FALSE(client->wait().ok());
      EXPECT_EQ(log.given_up, 1);
      EXPECT_FALSE(client->submitWrite(6, Bytes(), page_));
    }
    client.reset();
    EXPECT_EQ(log.given_up, 1) << "and no more";
    EXPECT_EQ(log.begun.size(), 1u);
    start(1);
  }
}

TEST_F(ReconnectionTest, ARegionThatHasGoneIsNotBelieved) {
  const auto client = connect();
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  // The server ends, and another one comes to its address.
  const uint16_t port = server_->port();
  server_.reset();
  memserver::ServerOptions options;
  options.listen = testHost() + ":" + std::to_string(port);
  options.size = Bytes(kPages * kPageSize);
  auto another = memserver::Server::start(options);
  ASSERT_TRUE(another) << another.error().text();
  EXPECT_TRUE(client->submitRead(2, Bytes(3 * kPageSize), page_));
  EXPECT_EQ(client->wait().error, ErrorCode::kLost);
}

TEST_F(ReconnectionTest, WhereNobodyListensItIsGivenUpLongBeforeTheLimit) {
  const auto client = connect();
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  cutter_->refuse();
  EXPECT_TRUE(client->submitRead(2, Bytes(3 * kPageSize), page_));
  EXPECT_EQ(client->wait().error, ErrorCode::kUnreachable);
  EXPECT_TRUE(client->failed());
}

TEST_F(ReconnectionTest, TheLimitIsKept) {
  const auto client = connect(Nanoseconds(300'000'000), Nanoseconds(50'000'000));
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  cutter_->pause(true);
  EXPECT_TRUE(client->submitRead(2, Bytes(3 * kPageSize), page_));
  EXPECT_EQ(client->wait().error, ErrorCode::kTimedOut);
  EXPECT_TRUE(client->failed());
}

TEST_F(ReconnectionTest, AnIdleClientNoticesToo) {
  const auto client = connect();
  ASSERT_EQ(write(*client, 3, 7), ErrorCode{});
  cutter_->cut();
  while (server_->counters().connections > 0) std::this_thread::yield();
  EXPECT_EQ(server_->regions().sweep(), 0u) << "it may come back";
  while (server_->counters().connections == 0) client->tend();
  EXPECT_EQ(read(*client, 3), 7);
}

TEST_F(ReconnectionTest, AClientThatLeavesInOrderKeepsNothing) {
  wire::ClientHello hello;
  hello.size = Bytes(kPageSize);
  auto client = RemoteClient::connect(loopback(server_->port()), hello, {.reconnect = kLong});
  ASSERT_TRUE(client) << client.error().text();
  EXPECT_EQ(server_->regions().regions(), 1u);
  client->reset();
  // Its worker may sweep as well.
  while (server_->regions().regions() > 0) {
    (void)server_->regions().sweep();
    std::this_thread::yield();
  }
}

/// Many requests in flight against an array; the network is cut after random numbers of bytes. As
/// callers do, nothing is written that is being read.
TEST_F(ReconnectionTest, AgreesWithAModelUnderCutsAnywhere) {
  const char* const asked = getenv("TIDEPOOL_TEST_CUTS");
  const uint64_t cuts = asked != nullptr ? strtoull(asked, nullptr, 10) : 100;
  start(2);
  const auto client = connect();
  std::mt19937_64 random(11);
  std::array<uint8_t, kPages> model{};
  struct Request {
    std::vector<uint64_t> offsets;
    std::vector<std::byte> memory;
    std::vector<uint8_t> expected;  // of a read
    uint64_t tag;
  };
  std::deque<Request> flying;
  const auto finish = [&] {
    const FetchCompletion done = client->wait();
    ASSERT_TRUE(done.ok()) << client->reason();
    Request& oldest = flying.front();
    ASSERT_EQ(done.tag, oldest.tag);
    for (size_t i = 0; i < oldest.expected.size(); ++i) {
      for (const size_t at : {size_t{0}, kPageSize / 2, kPageSize - 1}) {
        ASSERT_EQ(oldest.memory[i * kPageSize + at], std::byte{oldest.expected[i]});
      }
    }
    flying.pop_front();
  };
  const auto isRead = [&](const std::vector<uint64_t>& offsets) {
    return std::any_of(flying.begin(), flying.end(), [&](const Request& request) {
      return !request.expected.empty() &&
             std::find_first_of(request.offsets.begin(), request.offsets.end(), offsets.begin(),
                                offsets.end()) != request.offsets.end();
    });
  };
  uint64_t tag = 0;
  while (cutter_->cuts() < cuts) {
    if (random() % 8 == 0) cutter_->cutAfter(1 + random() % 100'000);
    const bool writes = random() % 2 == 0;
    const size_t count = 1 + random() % 8;
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = random() % kPages * kPageSize;
    while (writes && isRead(offsets)) ASSERT_NO_FATAL_FAILURE(finish());
    Request& request = flying.emplace_back();
    request.tag = ++tag;
    request.offsets = offsets;
    request.memory.resize(count * kPageSize);
    if (writes) {
      for (size_t i = 0; i < count; ++i) {
        const auto value = static_cast<uint8_t>(random());
        memset(request.memory.data() + i * kPageSize, value, kPageSize);
        model[offsets[i] / kPageSize] = value;
      }
      ASSERT_TRUE(client->submitWriteRows(tag, request.offsets, Bytes(kPageSize), request.memory));
    } else {
      for (const uint64_t offset : offsets) request.expected.push_back(model[offset / kPageSize]);
      ASSERT_TRUE(client->submitReadRows(tag, request.offsets, Bytes(kPageSize), request.memory));
    }
    ASSERT_TRUE(client->flush());
    while (flying.size() > 1 + random() % 20) ASSERT_NO_FATAL_FAILURE(finish());
  }
  while (!flying.empty()) ASSERT_NO_FATAL_FAILURE(finish());
  cutter_->cutAfter(0);
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ(read(*client, page), model[page]);
}

}  // namespace
}  // namespace tidepool
