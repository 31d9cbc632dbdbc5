// SPDX-License-Identifier: Apache-2.0
// Hostile frames against a live memory server: each closes its own connection, is counted, and
// harms nothing else. A well-behaved client keeps checking its bytes all the while.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);

/// A client that writes and reads pages of its own region until told to stop.
class Witness {
 public:
  explicit Witness(uint16_t port) {
    wire::ClientHello hello;
    hello.size = Bytes(4 * kMiB);
    auto client = RemoteClient::connect(loopback(port), hello, {.timeout = kLong});
    EXPECT_TRUE(client) << client.error().text();
    client_ = std::move(*client);
    thread_ = std::thread([this] { run(); });
  }
  ~Witness() {
    stop_ = true;
    thread_.join();
    EXPECT_EQ(wrong_, 0u);
    EXPECT_GT(rounds_, 0u);
  }

 private:
  void run() {
    std::mt19937_64 random(1);
    std::vector<uint64_t> out(16 * kPageSize / 8);
    std::vector<uint64_t> in(out.size());
    do {
      for (auto& word : out) word = random();
      const Bytes at(random() % 1000 * kPageSize);
      if (!client_->submitWrite(1, at, std::as_bytes(std::span(out))) || !client_->wait().ok() ||
          !client_->submitRead(2, at, std::as_writable_bytes(std::span(in))) ||
          !client_->wait().ok() || in != out) {
        ++wrong_;
        return;
      }
      ++rounds_;
    } while (!stop_);
  }

  std::unique_ptr<RemoteClient> client_;
  std::atomic<bool> stop_{false};
  uint64_t wrong_ = 0;   // of the thread; read after the join
  uint64_t rounds_ = 0;  // likewise
  std::thread thread_;
};

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    auto server = Server::start({.size = Bytes(64 * kMiB), .grace = Nanoseconds(1)});
    ASSERT_TRUE(server);
    server_ = std::move(*server);
    witness_ = std::make_unique<Witness>(server_->port());
  }
  void TearDown() override {
    witness_.reset();
    // The server still serves newcomers.
    RawClient raw(server_->port());
    EXPECT_TRUE(raw.greet({}));
  }

  /// A greeted connection with a region of its own.
  wire::ServerHello greet(RawClient& raw) {
    wire::ClientHello hello;
    hello.size = Bytes(kMiB);
    const auto answer = raw.greet(hello);
    EXPECT_TRUE(answer && answer->status == 0);
    return answer.value_or(wire::ServerHello{});
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Witness> witness_;
};

using Frame = std::array<std::byte, wire::kRequestSize>;

Frame frameOf(const wire::Request& request) {
  Frame frame;
  wire::encode(request, frame);
  return frame;
}

TEST_F(Hostile, EveryMalformedRequestClosesItsConnection) {
  const uint64_t top = ~uint64_t{0} - kPageSize + 1;
  const wire::Request bad[] = {
      {.opcode = static_cast<wire::Opcode>(99), .epoch = Epoch(1)},
      {.opcode = wire::Opcode::kRead, .epoch = Epoch(1), .offset = 1, .length = 4096},
      {.opcode = wire::Opcode::kRead, .epoch = Epoch(1), .offset = top, .length = 4096},
      {.opcode = wire::Opcode::kRead, .epoch = Epoch(1), .length = 0xfffff000},
      {.opcode = wire::Opcode::kWrite, .epoch = Epoch(1), .length = 4096, .payload = 8192},
      {.opcode = wire::Opcode::kWriteRows,
       .epoch = Epoch(1),
       .length = 64,
       .payload = 72,
       .count = 0x40000001,
       .row_bytes = 64},
      {.opcode = wire::Opcode::kDiscard, .epoch = Epoch(1), .offset = top, .length = 8192},
  };
  uint64_t sent = 0;
  for (const wire::Request& request : bad) {
    RawClient raw(server_->port());
    greet(raw);
    ASSERT_TRUE(raw.send(request));
    EXPECT_FALSE(raw.response()) << "malformed frames get no answer";
    ++sent;
  }
  Frame frame = frameOf({.opcode = wire::Opcode::kPing, .epoch = Epoch(1)});
  frame[0] = std::byte{'X'};
  RawClient raw(server_->port());
  greet(raw);
  ASSERT_TRUE(raw.send(std::span<const std::byte>(frame)));
  raw.waitForEnd();
  EXPECT_EQ(server_->counters().malformed.load(), sent + 1);
}

TEST_F(Hostile, GoodRequestsBeforeABadOneAreAnswered) {
  RawClient raw(server_->port());
  greet(raw);
  std::vector<std::byte> stream;
  for (uint64_t tag = 0; tag < 10; ++tag) {
    const Frame ping = frameOf({.opcode = wire::Opcode::kPing, .tag = tag, .epoch = Epoch(1)});
    stream.insert(stream.end(), ping.begin(), ping.end());
  }
  stream.insert(stream.end(), wire::kRequestSize, std::byte{0xff});
  ASSERT_TRUE(raw.send(stream));
  for (uint64_t tag = 0; tag < 10; ++tag) {
    const auto answer = raw.response();
    ASSERT_TRUE(answer) << tag;
    EXPECT_EQ(answer->tag, tag);
  }
  EXPECT_FALSE(raw.response());
}

TEST_F(Hostile, BadHandshakesAreClosed) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    RawClient raw(server_->port());
    std::array<std::byte, wire::kHelloSize> bytes;
    wire::encode(wire::ClientHello{}, bytes);
    if (round % 2 == 0) {
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      bytes[random() % 8] ^= std::byte{0x20};
    }
    raw.send(std::span<const std::byte>(bytes));
    raw.waitForEnd();
  }
}

TEST_F(Hostile, ConnectionsCutAnywhereLeaveNothingBehind) {
  std::array<std::byte, wire::kHelloSize> hello;
  wire::ClientHello create;
  create.size = Bytes(kMiB);
  wire::encode(create, hello);
  std::vector<std::byte> stream(hello.begin(), hello.end());
  const Frame write =
      frameOf({.opcode = wire::Opcode::kWrite, .epoch = Epoch(1), .length = 8192, .payload = 8192});
  stream.insert(stream.end(), write.begin(), write.end());
  stream.insert(stream.end(), 8192, std::byte{1});
  for (size_t cut = 0; cut < stream.size(); cut += cut < 200 ? 1 : 997) {
    RawClient raw(server_->port());
    ASSERT_TRUE(raw.send(std::span<const std::byte>(stream).first(cut)));
    raw.endSending();
    raw.waitForEnd();
  }
  // 1 ns of grace: all their regions are due. The server may be giving some of them back itself.
  while (server_->regions().freeBytes() < Bytes(60 * kMiB)) {
    server_->regions().sweep();
    std::this_thread::yield();
  }
  EXPECT_EQ(server_->regions().freeBytes(), Bytes(60 * kMiB));
}

TEST_F(Hostile, AClientThatNeverReadsHoldsUpOnlyItself) {
  RawClient raw(server_->port());
  greet(raw);
  // Far more answers than any socket buffer holds; the server must stop reading, not grow.
  std::atomic<bool> done{false};
  std::thread sender([&] {
    const Frame read =
        frameOf({.opcode = wire::Opcode::kRead, .epoch = Epoch(1), .length = 1 << 20});
    for (int i = 0; i < 200'000 && raw.send(std::span<const std::byte>(read)); ++i) {
    }
    done = true;
  });
  // The witness makes progress meanwhile; then this client drops the connection.
  Witness second(server_->port());
  raw.endSending();
  shutdown(raw.fd(), SHUT_RDWR);
  sender.join();
  EXPECT_TRUE(done);
}

/// Random mutations of good streams: whole bytes, cuts, repeats. Bounded by rounds, not by time.
TEST_F(Hostile, MutatedStreamsHarmNothing) {
  std::mt19937_64 random(20260101);
  const auto any = [&random](uint64_t below) { return random() % below; };
  for (int round = 0; round < 400; ++round) {
    RawClient raw(server_->port());
    const wire::ServerHello region = greet(raw);
    std::vector<std::byte> stream;
    for (uint64_t i = 0, count = 1 + any(20); i < count; ++i) {
      wire::Request request{.tag = random(), .epoch = region.epoch};
      request.opcode = static_cast<wire::Opcode>(1 + any(7));
      const uint32_t pages = static_cast<uint32_t>(1 + any(4)) * 4096;
      switch (request.opcode) {
        case wire::Opcode::kWrite:
          request.payload = pages;
          [[fallthrough]];
        case wire::Opcode::kRead:
        case wire::Opcode::kDiscard:
          request.offset = any(300) * kPageSize;
          request.length = pages;
          break;
        case wire::Opcode::kReadRows:
        case wire::Opcode::kWriteRows:
          request.count = static_cast<uint32_t>(1 + any(20));
          request.row_bytes = static_cast<uint32_t>(16 + any(300));
          request.length = request.count * request.row_bytes;
          request.payload = request.count * 8;
          if (request.opcode == wire::Opcode::kWriteRows) request.payload += request.length;
          break;
        default:
          break;
      }
      const Frame frame = frameOf(request);
      stream.insert(stream.end(), frame.begin(), frame.end());
      for (uint32_t at = 0; at < request.payload; ++at) {
        // Offsets of rows: small numbers, so that many are inside the region.
        stream.push_back(static_cast<std::byte>(at % 8 < 2 ? random() : 0));
      }
    }
    for (uint64_t i = 0, count = any(4); i < count; ++i) {
      stream[any(stream.size())] = static_cast<std::byte>(random());
    }
    if (any(3) == 0) stream.resize(1 + any(stream.size()));
    std::span<const std::byte> rest(stream);
    while (!rest.empty()) {
      const size_t piece = std::min<size_t>(rest.size(), 1 + any(5000));
      if (!raw.send(rest.first(piece))) break;
      rest = rest.subspan(piece);
    }
    raw.endSending();
    raw.waitForEnd();
  }
}

}  // namespace
}  // namespace tidepool::memserver
