// SPDX-License-Identifier: Apache-2.0
// Row requests at a memory server, seen from the wire: answers larger than what the server makes at
// once, clients that take their time, and fences that fall into the middle of a request.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr uint32_t kRow = 256;

class RowServer : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.size = Bytes(16 * kMiB);
    auto server = Server::start(options);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    owner_ = connect({});
    content_.resize(kMiB);
    std::mt19937_64 random(3);
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random() | 1);
    ASSERT_TRUE(owner_->submitWrite(1, Bytes(), content_));
    ASSERT_TRUE(owner_->wait().ok());
    hello_.kind = wire::HelloKind::kAttach;
    hello_.region = owner_->region().region;
    hello_.token = owner_->region().token;
    hello_.epoch = owner_->region().epoch;
  }

  std::unique_ptr<RemoteClient> connect(const wire::ClientHello& hello) {
    auto client = RemoteClient::connect(loopback(server_->port()), hello, {.timeout = kLong});
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  wire::Request rowsRequest(wire::Opcode opcode, uint32_t count, uint64_t tag) const {
    wire::Request request;
    request.opcode = opcode;
    request.tag = tag;
    request.epoch = hello_.epoch;
    request.count = count;
    request.row_bytes = kRow;
    request.length = count * kRow;
    request.payload = count * 8 + (opcode == wire::Opcode::kWriteRows ? request.length : 0);
    return request;
  }
  /// Rows of the first MiB, at any byte.
  static std::vector<uint64_t> someOffsets(uint32_t count) {
    std::mt19937_64 random(count);
    std::vector<uint64_t> offsets(count);
    for (uint64_t& offset : offsets) offset = random() % (kMiB - kRow);
    return offsets;
  }
  void expectRows(const std::vector<uint64_t>& offsets, const std::vector<std::byte>& rows) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      ASSERT_EQ(memcmp(rows.data() + i * kRow, content_.data() + offsets[i], kRow), 0) << i;
    }
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<RemoteClient> owner_;
  std::vector<std::byte> content_;
  wire::ClientHello hello_;
};

TEST_F(RowServer, AnswersOfEverySizeArePutTogether) {
  RawClient raw(server_->port());
  ASSERT_TRUE(raw.greet(hello_));
  const uint32_t counts[] = {1, 511, 512, 513, 4096, 1, 4095, 3, 1024, 4096};
  // Beside the receiving: the server stops reading when nobody takes what it sends.
  std::thread sender([&] {
    for (const uint32_t count : counts) {
      const auto offsets = someOffsets(count);
      EXPECT_TRUE(raw.send(rowsRequest(wire::Opcode::kReadRows, count, count)));
      EXPECT_TRUE(raw.send(std::as_bytes(std::span(offsets))));
    }
  });
  for (const uint32_t count : counts) {
    const auto answer = raw.response();
    EXPECT_TRUE(answer && answer->status == 0 && answer->tag == count);
    std::vector<std::byte> rows(count * kRow);
    EXPECT_TRUE(answer && answer->payload == rows.size() && raw.receive(rows));
    expectRows(someOffsets(count), rows);
  }
  sender.join();
}

TEST_F(RowServer, ReadsAndWritesOfRowsTakeEffectInOrder) {
  const uint64_t offset[] = {1000};
  std::vector<std::byte> versions(32 * kRow), seen(32 * kRow);
  for (size_t i = 0; i < 32; ++i) {
    const auto from = std::span(versions).subspan(i * kRow, kRow);
    std::fill(from.begin(), from.end(), static_cast<std::byte>(i));
    ASSERT_TRUE(owner_->submitWriteRows(i, offset, Bytes(kRow), from));
    ASSERT_TRUE(owner_->submitReadRows(100 + i, offset, Bytes(kRow),
                                       std::span(seen).subspan(i * kRow, kRow)));
  }
  while (owner_->inFlight() > 0) ASSERT_TRUE(owner_->wait().ok());
  EXPECT_TRUE(seen == versions);
}

TEST_F(RowServer, NoRowIsReadForOffsetsThatArriveAfterAFence) {
  RawClient raw(server_->port());
  ASSERT_TRUE(raw.greet(hello_));
  const auto offsets = someOffsets(64);
  const auto bytes = std::as_bytes(std::span(offsets));
  ASSERT_TRUE(raw.send(rowsRequest(wire::Opcode::kReadRows, 64, 9)));
  ASSERT_TRUE(raw.send(bytes.first(100)));
  poll(nullptr, 0, 20);  // so that the server most likely has the header
  ASSERT_TRUE(server_->fence(hello_.region, Epoch(2)));
  ASSERT_TRUE(raw.send(bytes.subspan(100)));
  const auto answer = raw.response();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->tag, 9u);
  EXPECT_EQ(answer->status, static_cast<uint16_t>(ErrorCode::kStaleEpoch));
}

TEST_F(RowServer, AFenceWithinAnAnswerEndsTheConnection) {
  RawClient raw(server_->port());
  ASSERT_TRUE(raw.greet(hello_));
  // More than sockets hold that nobody reads from, so that the server is in the middle of it.
  wire::Request request = rowsRequest(wire::Opcode::kReadRows, 2048, 1);
  request.row_bytes = 4096;
  request.length = wire::kMaxData;
  const std::vector<uint64_t> offsets(request.count, 4096);
  ASSERT_TRUE(raw.send(request));
  ASSERT_TRUE(raw.send(std::as_bytes(std::span(offsets))));
  ASSERT_TRUE(raw.response());
  ASSERT_TRUE(server_->fence(hello_.region, Epoch(2)));
  // The new holder's bytes must not be among what still comes. The old one's have no zeros.
  hello_.epoch = Epoch(2);
  auto next = connect(hello_);
  const std::vector<std::byte> zeros(kMiB);
  ASSERT_TRUE(next->submitWrite(1, Bytes(), zeros));
  ASSERT_TRUE(next->wait().ok());
  size_t came = 0;
  std::vector<std::byte> bytes(64 * kKiB);
  for (ssize_t given; (given = recv(raw.fd(), bytes.data(), bytes.size(), 0)) > 0;) {
    came += static_cast<size_t>(given);
    ASSERT_EQ(std::count(bytes.begin(), bytes.begin() + given, std::byte{0}), 0);
  }
  EXPECT_LT(came, wire::kMaxData);
}

TEST_F(RowServer, NoRowOfAHalfSentWriteArrivesAfterAFence) {
  RawClient raw(server_->port());
  ASSERT_TRUE(raw.greet(hello_));
  const auto offsets = someOffsets(4096);
  ASSERT_TRUE(raw.send(rowsRequest(wire::Opcode::kWriteRows, 4096, 4)));
  ASSERT_TRUE(raw.send(std::as_bytes(std::span(offsets))));
  const std::vector<std::byte> half(2048 * kRow, std::byte{0x77});
  ASSERT_TRUE(raw.send(half));
  ASSERT_TRUE(server_->fence(hello_.region, Epoch(2)));
  hello_.epoch = Epoch(2);
  auto next = connect(hello_);
  ASSERT_TRUE(next->submitWrite(1, Bytes(), content_));
  ASSERT_TRUE(next->wait().ok());
  ASSERT_TRUE(raw.send(half));
  const auto answer = raw.response();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, static_cast<uint16_t>(ErrorCode::kStaleEpoch));
  std::vector<std::byte> back(content_.size());
  ASSERT_TRUE(next->submitRead(2, Bytes(), back));
  ASSERT_TRUE(next->wait().ok());
  EXPECT_TRUE(back == content_);
}

}  // namespace
}  // namespace tidepool::memserver
