// SPDX-License-Identifier: Apache-2.0
// A memory server and clients whose pages go one way or the other, and a model of what their region
// should hold. One thread.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"
#include "tests/transport/lane_double.h"

namespace tidepool {

inline constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
inline constexpr ErrorCode kGood = ErrorCode{};
inline constexpr size_t kPages = 64;

enum class Way : uint8_t { kTcp, kDouble, kVerbs, kDoubleRows, kVerbsRows };

inline bool byVerbs(Way way) { return way == Way::kVerbs || way == Way::kVerbsRows; }
inline bool byDouble(Way way) { return way == Way::kDouble || way == Way::kDoubleRows; }
inline bool rowsToo(Way way) { return way == Way::kDoubleRows || way == Way::kVerbsRows; }

/// Those that this machine has.
inline std::vector<Way> waysHere() {
  std::vector<Way> all = {Way::kTcp, Way::kDouble, Way::kDoubleRows};
  if (testTransport() == Transport::kVerbs) all.insert(all.end(), {Way::kVerbs, Way::kVerbsRows});
  return all;
}
inline std::string nameOfWay(const testing::TestParamInfo<Way>& way) {
  const std::string rows = rowsToo(way.param) ? "_rows" : "";
  return (byVerbs(way.param) ? "verbs" : byDouble(way.param) ? "double" : "tcp") + rows;
}

/// A memory server, and clients that reach its pages, and rows too, in one of the ways.
class House {
 public:
  explicit House(Way way) : way_(way) {
    host_ = testHost();
    memserver::ServerOptions options;
    options.listen = host_ + ":0";
    options.size = Bytes(2 * wire::kMaxData);
    if (byVerbs(way)) options.transport = Transport::kVerbs;
    if (byDouble(way)) options.one_sided = &lanes;
    auto server = memserver::Server::start(options);
    EXPECT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    EXPECT_EQ(server_->noRdma(), "");
  }

  Result<std::unique_ptr<RemoteClient>> connect(const wire::ClientHello& hello) {
    ClientOptions options = {.timeout = kLong};
    if (way_ != Way::kTcp) options.transport = Transport::kVerbs;
    if (rowsToo(way_)) options.rows = RowsBy::kLane;
    if (byDouble(way_)) options.lanes = &lanes;
    return RemoteClient::connect(
        *parseEndpoint((host_ + ":" + std::to_string(server_->port())).c_str()), hello, options);
  }
  std::unique_ptr<RemoteClient> create() {
    wire::ClientHello hello;
    hello.size = Bytes(kPages * kPageSize);
    auto client = connect(hello);
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  memserver::Server& server() { return *server_; }
  /// How pages should travel.
  Transport expected() const { return way_ == Way::kTcp ? Transport::kTcp : Transport::kVerbs; }

  LaneDouble lanes;

 private:
  const Way way_;
  std::string host_;
  std::unique_ptr<memserver::Server> server_;
};

inline wire::ClientHello attachTo(const wire::ServerHello& region) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = region.region;
  hello.token = region.token;
  hello.epoch = region.epoch;
  return hello;
}

inline std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

inline ErrorCode finish(RemoteClient& client, const Status& queued) {
  if (!queued) return queued.error().code();
  return client.wait().error;
}

/// A client, and what the region should hold. Every request is remembered with what its answer
/// should be at the time it was made.
class Model {
 public:
  explicit Model(RemoteClient& client) : client_(client), bytes_(kPages * kPageSize) {}

  void doAnything(std::mt19937_64& random) {
    const uint64_t first = random() % kPages;
    // Now and then longer than a lane takes in one piece.
    const uint64_t most = random() % 4 == 0 ? kPages - first : std::min(kPages - first, size_t{3});
    const uint64_t offset = first * kPageSize;
    const uint64_t size = (1 + random() % most) * kPageSize;
    switch (random() % 8) {
      case 0:
        return ping();
      case 1:
        return discard(offset, size);
      case 2:
        return rows(random);
      case 3:
      case 4:
        return write(offset, pattern(size, random()));
      default:
        return read(offset, size);
    }
  }
  /// Sees that everything in flight ends once, in order and as it should.
  void settle() {
    while (client_.inFlight() > 0) takeSome();
    EXPECT_EQ(ended_, requests_.size());
  }
  size_t requests() const { return requests_.size(); }

 private:
  struct Request {
    std::vector<std::byte> memory;    // read to, or written from
    std::vector<std::byte> expected;  // what a read should bring
    std::vector<uint64_t> offsets;
  };

  Request& next() { return *requests_.emplace_back(std::make_unique<Request>()); }
  uint64_t tag() const { return requests_.size() - 1; }
  template <typename Submit>
  void submit(Submit&& queue) {
    for (;;) {
      const Status queued = queue();
      if (queued) break;
      ASSERT_EQ(queued.error().code(), ErrorCode::kNoSpace) << queued.error().text();
      takeSome();
    }
  }
  void takeSome() {
    FetchCompletion done[5];
    const size_t count = client_.poll(done);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(done[i].tag, ended_);
      EXPECT_EQ(done[i].error, kGood);
      const Request& request = *requests_.at(ended_++);
      EXPECT_TRUE(request.expected.empty() || request.expected == request.memory) << ended_ - 1;
    }
    if (count > 0 || client_.inFlight() == 0) return;
    pollfd waiting = {client_.fd(), client_.events(), 0};
    poll(&waiting, 1, static_cast<int>(client_.timeToDeadline().value() / 1'000'000 + 1));
  }

  void ping() {
    next();
    submit([&] { return client_.submitPing(tag()); });
  }
  void discard(uint64_t offset, uint64_t size) {
    next();
    submit([&] { return client_.submitDiscard(tag(), Bytes(offset), Bytes(size)); });
    std::fill_n(bytes_.begin() + static_cast<long>(offset), size, std::byte{});
  }
  void write(uint64_t offset, std::vector<std::byte> bytes) {
    Request& request = next();
    request.memory = std::move(bytes);
    submit([&] { return client_.submitWrite(tag(), Bytes(offset), request.memory); });
    std::copy(request.memory.begin(), request.memory.end(),
              bytes_.begin() + static_cast<long>(offset));
  }
  void read(uint64_t offset, uint64_t size) {
    Request& request = next();
    request.memory.resize(size, std::byte{0xcc});
    request.expected.assign(bytes_.begin() + static_cast<long>(offset),
                            bytes_.begin() + static_cast<long>(offset + size));
    submit([&] { return client_.submitRead(tag(), Bytes(offset), request.memory); });
  }
  void rows(std::mt19937_64& random) {
    constexpr uint64_t kSizes[] = {16, 96, 256, 260, 1024, 4096};
    const uint64_t row = kSizes[random() % std::size(kSizes)];
    constexpr uint64_t kEnd = kPages * kPageSize;
    Request& request = next();
    const uint64_t count = 1 + random() % 40;
    // Now and then adjacent ones, the same one again, and only few places for all.
    const uint64_t spread = random() % 3 == 0 ? 4 * row : kEnd - row;
    uint64_t at = random() % spread;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t kind = random() % 4;
      at = kind == 0 || at + 2 * row > kEnd ? random() % spread : kind == 1 ? at : at + row;
      request.offsets.push_back(at);
    }
    request.memory = pattern(count * row, random());
    const bool writes = random() % 2 == 0;
    if (writes) {
      submit([&] {
        return client_.submitWriteRows(tag(), request.offsets, Bytes(row), request.memory);
      });
    } else {
      submit([&] {
        return client_.submitReadRows(tag(), request.offsets, Bytes(row), request.memory);
      });
    }
    for (uint64_t i = 0; i < count; ++i) {
      const auto there = bytes_.begin() + static_cast<long>(request.offsets[i]);
      if (writes) {
        std::copy_n(request.memory.begin() + static_cast<long>(i * row), row, there);
      } else {
        request.expected.insert(request.expected.end(), there, there + static_cast<long>(row));
      }
    }
  }

  RemoteClient& client_;
  std::vector<std::byte> bytes_;
  std::vector<std::unique_ptr<Request>> requests_;  // whose memory stays where it is
  uint64_t ended_ = 0;
};

}  // namespace tidepool
