// SPDX-License-Identifier: Apache-2.0
// The memory server in this process: regions, tokens, epochs, bounds, rows, discards, the order of
// requests, and what becomes of a region when its clients go.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <random>
#include <thread>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "tests/transport/fake_peer.h"

namespace tidepool::memserver {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr ErrorCode kGood = ErrorCode{};

std::unique_ptr<Server> startServer(ServerOptions options) {
  options.listen = testHost() + ":0";
  options.transport = testTransport();
  auto server = Server::start(options);
  EXPECT_TRUE(server) << server.error().text();
  return std::move(*server);
}

Result<std::unique_ptr<RemoteClient>> create(const Server& server, Bytes size) {
  wire::ClientHello hello;
  hello.size = size;
  return RemoteClient::connect(loopback(server.port()), hello,
                               {.timeout = kLong, .transport = testTransport()});
}

wire::ClientHello attachTo(const wire::ServerHello& region) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = region.region;
  hello.token = region.token;
  hello.epoch = region.epoch;
  return hello;
}

Result<std::unique_ptr<RemoteClient>> attach(const Server& server, const wire::ClientHello& hello) {
  return RemoteClient::connect(loopback(server.port()), hello,
                               {.timeout = kLong, .transport = testTransport()});
}

/// Runs one request to its end.
ErrorCode finish(RemoteClient& client, const Status& queued) {
  if (!queued) return queued.error().code();
  return client.wait().error;
}

ErrorCode writePages(RemoteClient& client, uint64_t offset, std::span<const std::byte> bytes) {
  return finish(client, client.submitWrite(1, Bytes(offset), bytes));
}

std::vector<std::byte> readPages(RemoteClient& client, uint64_t offset, size_t size) {
  std::vector<std::byte> bytes(size, std::byte{0xcc});
  EXPECT_EQ(finish(client, client.submitRead(2, Bytes(offset), bytes)), kGood);
  return bytes;
}

std::vector<std::byte> randomBytes(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(roundUp(size, 8));
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = random();
    memcpy(bytes.data() + at, &word, 8);
  }
  bytes.resize(size);
  return bytes;
}

class MemoryServer : public testing::Test {
 protected:
  void SetUp() override {
    server_ = startServer({.size = Bytes(64 * kMiB), .grace = Nanoseconds(1)});
    auto client = create(*server_, Bytes(16 * kMiB));
    ASSERT_TRUE(client) << client.error().text();
    client_ = std::move(*client);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<RemoteClient> client_;
};

TEST_F(MemoryServer, FreshRegionsReadAsZeros) {
  EXPECT_TRUE(readPages(*client_, 8 * kPageSize, kPageSize) == std::vector<std::byte>(kPageSize));
}

TEST_F(MemoryServer, RunsOfEverySizeComeBack) {
  for (size_t pages : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 512u, 2048u}) {
    const auto bytes = randomBytes(pages, pages * kPageSize);
    ASSERT_EQ(writePages(*client_, 3 * kPageSize, bytes), kGood);
    ASSERT_TRUE(readPages(*client_, 3 * kPageSize, bytes.size()) == bytes) << pages;
  }
}

TEST_F(MemoryServer, RefusesWhatIsOutsideAndGoesOn) {
  const uint64_t end = client_->region().capacity.value();
  std::vector<std::byte> pages(2 * kPageSize, std::byte{7});
  EXPECT_EQ(writePages(*client_, end, pages), ErrorCode::kInvalidArgument);
  EXPECT_EQ(writePages(*client_, end - kPageSize, pages), ErrorCode::kInvalidArgument);
  EXPECT_EQ(writePages(*client_, 1ull << 62, pages), ErrorCode::kInvalidArgument);
  EXPECT_EQ(finish(*client_, client_->submitRead(1, Bytes(end - kPageSize), pages)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(finish(*client_, client_->submitDiscard(1, Bytes(end), Bytes(kPageSize))),
            ErrorCode::kInvalidArgument);
  const uint64_t rows[] = {0, end - 63};
  EXPECT_EQ(finish(*client_, client_->submitReadRows(1, rows, Bytes(64), {pages.data(), 128})),
            ErrorCode::kInvalidArgument);
  const uint64_t wrapping[] = {0, ~uint64_t{0} - 3};
  EXPECT_EQ(finish(*client_, client_->submitWriteRows(1, wrapping, Bytes(64), {pages.data(), 128})),
            ErrorCode::kInvalidArgument);
  // The row that was inside has not been written either, and the connection still works.
  EXPECT_TRUE(readPages(*client_, 0, kPageSize) == std::vector<std::byte>(kPageSize));
  EXPECT_FALSE(client_->failed());
}

TEST_F(MemoryServer, RowsGatherAndScatterAtAnyByte) {
  const size_t size = 2 * kMiB;
  auto model = randomBytes(1, size);
  ASSERT_EQ(writePages(*client_, 0, model), kGood);
  std::mt19937_64 random(2);
  for (size_t row : {16u, 17u, 100u, 256u, 4096u}) {
    const size_t count = std::min<size_t>(wire::kMaxRows, 1 + random() % 3000);
    std::vector<uint64_t> offsets(count);
    for (auto& offset : offsets) offset = random() % (size - row);
    const size_t bytes = std::min<size_t>(count, wire::kMaxData / row) * row;
    offsets.resize(bytes / row);
    std::vector<std::byte> rows(bytes);
    ASSERT_EQ(finish(*client_, client_->submitReadRows(1, offsets, Bytes(row), rows)), kGood);
    for (size_t i = 0; i < offsets.size(); ++i) {
      ASSERT_EQ(memcmp(rows.data() + i * row, model.data() + offsets[i], row), 0);
    }
    const auto fresh = randomBytes(row, bytes);
    ASSERT_EQ(finish(*client_, client_->submitWriteRows(1, offsets, Bytes(row), fresh)), kGood);
    for (size_t i = 0; i < offsets.size(); ++i) {
      memcpy(model.data() + offsets[i], fresh.data() + i * row, row);
    }
    ASSERT_TRUE(readPages(*client_, 0, size) == model) << row;
  }
}

TEST_F(MemoryServer, DiscardedPagesReadAsZerosAndGiveMemoryBack) {
  const auto bytes = randomBytes(3, 4 * kMiB);
  ASSERT_EQ(writePages(*client_, 0, bytes), kGood);
  ASSERT_EQ(finish(*client_,
                   client_->submitDiscard(1, Bytes(kPageSize), Bytes(4 * kMiB - 2 * kPageSize))),
            kGood);
  const auto back = readPages(*client_, 0, bytes.size());
  EXPECT_EQ(memcmp(back.data(), bytes.data(), kPageSize), 0);
  EXPECT_EQ(
      memcmp(back.data() + 4 * kMiB - kPageSize, bytes.data() + 4 * kMiB - kPageSize, kPageSize),
      0);
  const std::vector<std::byte> zeros(4 * kMiB - 2 * kPageSize);
  EXPECT_EQ(memcmp(back.data() + kPageSize, zeros.data(), zeros.size()), 0);
}

TEST_F(MemoryServer, RequestsOfAConnectionTakeEffectInOrder) {
  // Read, write and discard the same page in one batch: each read sees what came before it only.
  constexpr size_t kRounds = 200;
  std::vector<std::vector<std::byte>> writes;
  std::vector<std::vector<std::byte>> reads(kRounds, std::vector<std::byte>(kPageSize));
  for (size_t i = 0; i < kRounds; ++i) writes.push_back(randomBytes(i, kPageSize));
  for (size_t i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(client_->submitRead(i, Bytes(), reads[i]));
    ASSERT_TRUE(i % 10 == 9 ? client_->submitDiscard(i, Bytes(), Bytes(kPageSize))
                            : client_->submitWrite(i, Bytes(), writes[i]));
  }
  while (client_->inFlight() > 0) ASSERT_TRUE(client_->wait().ok());
  for (size_t i = 0; i < kRounds; ++i) {
    const bool zero = i == 0 || (i - 1) % 10 == 9;
    EXPECT_TRUE(reads[i] == (zero ? std::vector<std::byte>(kPageSize) : writes[i - 1])) << i;
  }
}

TEST_F(MemoryServer, StatTellsTheNumbers) {
  std::array<std::byte, wire::kStatSize> bytes;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(client_->submitStat(1, bytes));
  while (client_->inFlight() > 0) ASSERT_TRUE(client_->wait().ok());
  const wire::Stat stat = wire::decodeStat(bytes);
  EXPECT_EQ(stat.region_capacity, 16 * kMiB);
  EXPECT_EQ(stat.server_capacity, 64 * kMiB);
  EXPECT_EQ(stat.server_free, 48 * kMiB);
  EXPECT_EQ(stat.regions, 1u);
  EXPECT_EQ(stat.connections, 1u);
  EXPECT_EQ(stat.requests, 100u);
}

TEST_F(MemoryServer, OnlyTheTokenOpensARegion) {
  wire::ClientHello hello = attachTo(client_->region());
  EXPECT_TRUE(attach(*server_, hello));
  for (size_t i = 0; i < hello.token.bytes.size(); ++i) {
    wire::ClientHello wrong = hello;
    wrong.token.bytes[i] ^= 0x10;
    EXPECT_EQ(attach(*server_, wrong).error().code(), ErrorCode::kPermission);
  }
  wire::ClientHello other = hello;
  other.region += 1;
  const auto lost = attach(*server_, other);
  EXPECT_EQ(lost.error().code(), ErrorCode::kLost) << lost.error().text();
}

TEST_F(MemoryServer, TokensAreNotReused) {
  auto other = create(*server_, Bytes(kMiB));
  ASSERT_TRUE(other);
  EXPECT_NE((*other)->region().region, client_->region().region);
  EXPECT_FALSE(wire::sameToken((*other)->region().token, client_->region().token));
}

TEST_F(MemoryServer, AFenceShutsOldEpochsOut) {
  const auto before = randomBytes(1, kPageSize);
  ASSERT_EQ(writePages(*client_, 0, before), kGood);
  const wire::ClientHello old_hello = attachTo(client_->region());
  ASSERT_TRUE(server_->fence(client_->region().region, Epoch(2)));
  EXPECT_EQ(writePages(*client_, 0, randomBytes(2, kPageSize)), ErrorCode::kStaleEpoch);
  const auto stale = attach(*server_, old_hello);
  EXPECT_EQ(stale.error().code(), ErrorCode::kStaleEpoch);
  wire::ClientHello hello = old_hello;
  hello.epoch = Epoch(2);
  auto fresh = attach(*server_, hello);
  ASSERT_TRUE(fresh) << fresh.error().text();
  EXPECT_TRUE(readPages(**fresh, 0, kPageSize) == before);
  hello.epoch = Epoch(3);
  EXPECT_EQ(attach(*server_, hello).error().code(), ErrorCode::kConflict);
  EXPECT_FALSE(server_->fence(client_->region().region, Epoch(2)));
  EXPECT_FALSE(server_->fence(9999, Epoch(2)));
}

TEST_F(MemoryServer, NoByteOfAHalfSentWriteArrivesAfterAFence) {
  RawClient raw(server_->port());
  const auto hello = raw.greet(attachTo(client_->region()));
  ASSERT_TRUE(hello && hello->status == 0);
  const uint32_t size = 2 * kMiB;
  ASSERT_TRUE(raw.send({.opcode = wire::Opcode::kWrite,
                        .tag = 4,
                        .epoch = hello->epoch,
                        .length = size,
                        .payload = size}));
  const std::vector<std::byte> half(size / 2, std::byte{0x77});
  ASSERT_TRUE(raw.send(half));
  ASSERT_TRUE(server_->fence(hello->region, Epoch(2)));
  wire::ClientHello next = attachTo(*hello);
  next.epoch = Epoch(2);
  auto owner = attach(*server_, next);
  ASSERT_TRUE(owner);
  const std::vector<std::byte> clean(size, std::byte{0x11});
  ASSERT_EQ(writePages(**owner, 0, clean), kGood);
  ASSERT_TRUE(raw.send(half));
  const auto answer = raw.response();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, static_cast<uint16_t>(ErrorCode::kStaleEpoch));
  EXPECT_EQ(answer->tag, 4u);
  EXPECT_TRUE(readPages(**owner, 0, size) == clean);
}

/// Waits until the server has `bytes` free; the sweep that frees runs on the server's clock.
bool waitForFree(Server& server, Bytes bytes) {
  for (int i = 0; i < 600; ++i) {
    if (server.regions().freeBytes() == bytes) return true;
    poll(nullptr, 0, 10);
  }
  return false;
}

TEST_F(MemoryServer, ARegionGoesWithItsLastConnectionAndIsScrubbed) {
  ASSERT_EQ(writePages(*client_, 0, randomBytes(1, 4 * kMiB)), kGood);
  const wire::ClientHello hello = attachTo(client_->region());
  auto second = attach(*server_, hello);
  ASSERT_TRUE(second);
  client_.reset();
  // One connection is left, so the region stays whatever the grace.
  server_->regions().sweep();
  EXPECT_EQ(server_->regions().regions(), 1u);
  second->reset();
  EXPECT_TRUE(waitForFree(*server_, Bytes(64 * kMiB)));
  EXPECT_EQ(attach(*server_, hello).error().code(), ErrorCode::kLost);
  // The next holder of all the memory finds nothing of it.
  auto next = create(*server_, Bytes());
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)->region().capacity.value(), 64 * kMiB);
  for (uint64_t at = 0; at < 64 * kMiB; at += 8 * kMiB) {
    EXPECT_TRUE(readPages(**next, at, 8 * kMiB) == std::vector<std::byte>(8 * kMiB));
  }
}

TEST(MemoryServerGrace, AClientMayComeBackForItsBytes) {
  auto server = startServer({.size = Bytes(8 * kMiB), .grace = kLong});
  auto client = create(*server, Bytes());
  ASSERT_TRUE(client);
  const auto bytes = randomBytes(1, kPageSize);
  ASSERT_EQ(writePages(**client, 0, bytes), kGood);
  const wire::ClientHello hello = attachTo((*client)->region());
  client->reset();
  auto again = attach(*server, hello);
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_TRUE(readPages(**again, 0, kPageSize) == bytes);
}

TEST(MemoryServerGrace, ANewcomerHasTheRoomOfOneThatLeft) {
  auto server = startServer({.size = Bytes(8 * kMiB), .grace = kLong});
  auto first = create(*server, Bytes());
  ASSERT_TRUE(first);
  EXPECT_EQ(create(*server, Bytes(kMiB)).error().code(), ErrorCode::kNoSpace);
  first->reset();
  auto second = create(*server, Bytes(8 * kMiB));
  ASSERT_TRUE(second) << second.error().text();
  EXPECT_EQ((*second)->region().capacity.value(), 8 * kMiB);
  second->reset();
  EXPECT_EQ(create(*server, Bytes(9 * kMiB)).error().code(), ErrorCode::kNoSpace);
}

TEST(RegionTable, OnlyWhatWasLeftInOrderGoesBeforeItsGraceIsOver) {
  using memserver::Leaving;
  const Bytes size(kMiB);
  MonotonicClock clock;
  memserver::RegionTable regions(size, kLong, clock);
  auto region = *regions.create(size);
  regions.detach(region, Leaving::kBroken);
  EXPECT_EQ(regions.create(size).error().code(), ErrorCode::kNoSpace);
  EXPECT_TRUE(regions.willFit(size)) << "by and by";
  ASSERT_TRUE(regions.attach(region->id(), region->token(), region->epoch()));
  regions.detach(region, Leaving::kInOrder);
  EXPECT_EQ(regions.sweep(), 0u) << "nobody needs it";
  ASSERT_TRUE(regions.attach(region->id(), region->token(), region->epoch()));
  regions.detach(region, Leaving::kOfFurther);
  EXPECT_EQ(regions.create(size).error().code(), ErrorCode::kNoSpace) << "it had come back";
  ASSERT_TRUE(regions.attach(region->id(), region->token(), region->epoch()));
  ASSERT_TRUE(regions.attach(region->id(), region->token(), region->epoch()));
  regions.detach(region, Leaving::kInOrder);
  regions.detach(region, Leaving::kBroken);
  EXPECT_EQ(regions.create(size).error().code(), ErrorCode::kNoSpace) << "a relative may come back";
  ASSERT_TRUE(regions.attach(region->id(), region->token(), region->epoch()));
  regions.detach(region, Leaving::kInOrder);
  EXPECT_TRUE(regions.create(size));
}

/// While a region that nobody holds is being unmapped, by another worker, it is neither listed nor
/// free: a client that finds no room then must be told to try again, not that the server is full.
TEST(RegionTable, WhatIsBeingUnmappedIsWorthWaitingFor) {
  const Bytes size(32ull << 20);
  MonotonicClock clock;
  memserver::RegionTable regions(size, Nanoseconds(), clock);
  for (int round = 0; round < 60; ++round) {
    auto first = regions.create(size);
    ASSERT_TRUE(first.has_value()) << round;
    memset((*first)->data(), 1, size.value());  // so that unmapping takes its time
    EXPECT_FALSE(regions.willFit(size)) << "it is held";
    regions.detach(*first);
    first->reset();
    std::thread sweeper([&] { (void)regions.sweep(); });
    while (regions.regions() > 0) std::this_thread::yield();
    auto second = regions.create(size);
    while (!second) {
      if (!regions.willFit(size)) break;
      second = regions.create(size);
    }
    sweeper.join();
    ASSERT_TRUE(second.has_value()) << round;
    regions.detach(*second);
    second->reset();
    (void)regions.sweep();
    EXPECT_EQ(regions.freeBytes(), size);
  }
  EXPECT_FALSE(regions.willFit(size + Bytes(1)));
  EXPECT_FALSE(regions.willFit(Bytes(UINT64_MAX)));
}

TEST(MemoryServerGrace, ANewcomerMayBeSeenBeforeTheOneThatLeft) {
  // Each connection goes to another worker, and on busy processors they run in any order.
  auto server = startServer({.size = Bytes(8 * kMiB), .threads = 4, .grace = Nanoseconds(1)});
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    auto client = create(*server, Bytes(8 * kMiB));
    EXPECT_TRUE(client) << i << ": " << client.error().text();
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
}

/// Connections on which there is always more to serve: each is sent writes as fast as it takes
/// them, and what it answers is thrown away.
class Crowd {
 public:
  Crowd(uint16_t port, const wire::ServerHello& region) {
    for (int i = 0; i < kConnections; ++i) {
      clients_.push_back(std::make_unique<RawClient>(port));
      EXPECT_TRUE(clients_.back()->greet(attachTo(region)));
    }
    wire::Request request;
    request.opcode = wire::Opcode::kWrite;
    request.epoch = region.epoch;
    request.length = request.payload = kPageSize;
    for (int i = 0; i < 64; ++i) {
      std::array<std::byte, wire::kRequestSize> header;
      wire::encode(request, header);
      stream_.insert(stream_.end(), header.begin(), header.end());
      stream_.resize(stream_.size() + kPageSize);
    }
    for (int first : {0, kConnections / 2})
      threads_.emplace_back([this, first] { keepBusy(first); });
  }
  ~Crowd() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  static constexpr int kConnections = 80;
  void keepBusy(int first) {
    std::array<size_t, kConnections> sent{};
    std::vector<std::byte> answers(64 * kKiB);
    for (int i = 0; !stop_; i = (i + 1) % (kConnections / 2)) {
      const int socket = clients_[static_cast<size_t>(first + i)]->fd();
      size_t& at = sent[static_cast<size_t>(i)];
      while (recv(socket, answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
      }
      const ssize_t taken =
          send(socket, stream_.data() + at, stream_.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (taken > 0) at = (at + static_cast<size_t>(taken)) % stream_.size();
    }
  }
  std::vector<std::unique_ptr<RawClient>> clients_;
  std::vector<std::byte> stream_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(MemoryServerGrace, NewcomersAreRefusedHoweverBusyOthersAre) {
  auto server = startServer({.size = Bytes(8 * kMiB),
                             .grace = Nanoseconds(1),
                             .handshake_limit = Nanoseconds(3'600'000'000'000)});
  auto owner = create(*server, Bytes());
  ASSERT_TRUE(owner);
  const Crowd crowd(server->port(), (*owner)->region());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(create(*server, Bytes(kMiB)).error().code(), ErrorCode::kNoSpace);
  }
}

TEST(MemoryServerLimits, TheSumOfRegionsIsBounded) {
  auto server = startServer({.size = Bytes(10 * kMiB)});
  auto first = create(*server, Bytes(6 * kMiB));
  ASSERT_TRUE(first);
  for (uint64_t size : {uint64_t{5 * kMiB}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 4096}) {
    const auto refused = create(*server, Bytes(size));
    ASSERT_FALSE(refused) << size;
    EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  }
  auto rounded = create(*server, Bytes(1));
  ASSERT_TRUE(rounded);
  EXPECT_EQ((*rounded)->region().capacity.value(), kPageSize);
  auto rest = create(*server, Bytes());
  ASSERT_TRUE(rest);
  EXPECT_EQ((*rest)->region().capacity.value(), 4 * kMiB - kPageSize);
  EXPECT_EQ(create(*server, Bytes()).error().code(), ErrorCode::kNoSpace);
}

TEST(MemoryServerLimits, BadOptionsAreExplained) {
  EXPECT_EQ(Server::start({.listen = "nonsense", .size = Bytes(kMiB)}).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Server::start({.size = Bytes(1)}).error().code(), ErrorCode::kInvalidArgument);
  auto first = startServer({.size = Bytes(kMiB)});
  const std::string same = "127.0.0.1:" + std::to_string(first->port());
  const auto second = Server::start({.listen = same, .size = Bytes(kMiB)});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
  EXPECT_NE(std::string(second.error().text()).find(same), std::string::npos);
}

TEST(MemoryServerLimits, AHandshakeThatNeverComesEndsTheConnection) {
  auto server = startServer({.size = Bytes(kMiB), .handshake_limit = Nanoseconds(1)});
  RawClient raw(server->port());
  raw.waitForEnd();  // hangs if the server does not close
}

/// Several clients with regions of their own, several connections each, on 1 and on 3 threads.
class Concurrency : public testing::TestWithParam<unsigned> {};

TEST_P(Concurrency, ClientsNeverSeeOneAnothersBytes) {
  auto server = startServer({.size = Bytes(64 * kMiB), .threads = GetParam()});
  constexpr int kClients = 3;
  constexpr int kConnections = 2;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int owner = 0; owner < kClients; ++owner) {
    auto first = create(*server, Bytes(8 * kMiB));
    ASSERT_TRUE(first);
    for (int number = 0; number < kConnections; ++number) {
      auto client = attach(*server, attachTo((*first)->region()));
      ASSERT_TRUE(client);
      threads.emplace_back([&wrong, seed = owner * 16 + number, number, mine = std::move(*client)] {
        const uint64_t base = static_cast<uint64_t>(number) * 4 * kMiB;
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        for (int round = 0; round < 150; ++round) {
          const size_t pages = 1 + random() % 40;
          const uint64_t at = base + random() % (1024 - pages) * kPageSize;
          const auto bytes = randomBytes(random(), pages * kPageSize);
          std::vector<std::byte> back(bytes.size());
          const bool good = finish(*mine, mine->submitWrite(1, Bytes(at), bytes)) == kGood &&
                            finish(*mine, mine->submitRead(2, Bytes(at), back)) == kGood;
          if (!good || back != bytes) wrong.fetch_add(1);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(MemoryServer, Concurrency, testing::Values(1u, 3u));

}  // namespace
}  // namespace tidepool::memserver
