// SPDX-License-Identifier: Apache-2.0
// Rows of several threads over shared connections that break, by the server or through lanes: every
// request ends well, and every row is what was written last.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/tier/row_house.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {
namespace {

constexpr uint64_t kRow = 256, kRows = 2048, kBatch = 64;

struct Writer {
  std::unique_ptr<RowChannel> channel;
  std::vector<uint64_t> model = std::vector<uint64_t>(kRows, 0);
  std::mt19937_64 random;
  std::vector<std::byte> memory = std::vector<std::byte>(kBatch * kRow);
  std::vector<uint64_t> rows = std::vector<uint64_t>(kBatch);

  void choose() {
    for (uint64_t& row : rows) row = random() % kRows;
  }
  void write() {
    choose();
    for (size_t i = 0; i < kBatch; ++i) {
      model[rows[i]] = random();
      for (size_t at = 0; at < kRow; at += 8) {
        memcpy(memory.data() + i * kRow + at, &model[rows[i]], 8);
      }
    }
    ASSERT_EQ(finish(*channel, channel->submitWrite(1, rows, memory.data())), kGood);
  }
  void read() {
    choose();
    ASSERT_EQ(finish(*channel, channel->submitRead(2, rows, memory.data())), kGood);
    for (size_t i = 0; i < kBatch; ++i) {
      for (size_t at = 0; at < kRow; at += 8) {
        uint64_t got;
        memcpy(&got, memory.data() + i * kRow + at, 8);
        ASSERT_EQ(got, model[rows[i]]) << "row " << rows[i] << ", byte " << at;
      }
    }
  }
};

/// Threads with an area each over connections that `connect` makes, by turns, until there were so
/// many cuts.
void writeUnderCuts(House& house, WireCutter& cutter,
                    const std::function<std::shared_ptr<RowConnection>()>& connect) {
  constexpr uint64_t kCuts = 40;
  constexpr size_t kWriters = 4, kConnections = 2;
  std::array<std::shared_ptr<RowConnection>, kConnections> connections;
  for (auto& connection : connections) connection = connect();
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kWriters; ++i) {
    threads.emplace_back([&, i] {
      Writer writer;
      writer.random.seed(i);
      writer.channel = house.open(house.area(kRows, kRow), connections[i % kConnections]);
      // What is in frames at first is undefined.
      std::vector<std::byte> zeros(kRow);
      for (uint64_t row = 0; row < kRows; ++row) {
        ASSERT_EQ(finish(*writer.channel, writer.channel->submitWrite(1, {&row, 1}, zeros.data())),
                  kGood);
      }
      while (!enough && !testing::Test::HasFatalFailure()) {
        ASSERT_NO_FATAL_FAILURE(writer.write());
        ASSERT_NO_FATAL_FAILURE(writer.read());
      }
    });
  }
  std::mt19937_64 random(3);
  while (cutter.cuts() < kCuts && !testing::Test::HasFailure()) {
    const uint64_t before = cutter.cuts();
    cutter.cutAfter(1 + random() % 50'000);
    while (cutter.cuts() == before && !testing::Test::HasFailure()) std::this_thread::yield();
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(RowReconnection, ThreadsThatShareConnectionsLoseNothing) {
  House house{Bytes(16 * kMiB)};
  WireCutter cutter(house.server->port());
  writeUnderCuts(house, cutter, [&] {
    auto client = house.client(RowsBy::kServer, RowConnection::kMostRequests, &cutter);
    return *RowConnection::create(std::move(client));
  });
}

/// The lane does not go through the cutter, and so the connection alone breaks: the lane ends with
/// it, and rows go by the server from then on.
TEST(RowReconnection, AClientWithALaneGoesOnByTheServer) {
  House house{Bytes(16 * kMiB)};
  WireCutter cutter(house.server->port());
  const auto client = house.client(RowsBy::kLane, 16, &cutter);
  ASSERT_EQ(client->pagesBy(), Transport::kVerbs);
  std::vector<std::byte> page(kPageSize, std::byte{5});
  ASSERT_TRUE(client->submitWrite(1, Bytes(), page));
  ASSERT_TRUE(client->wait().ok());
  cutter.cut();
  while (client->pagesBy() == Transport::kVerbs) client->tend();
  std::fill(page.begin(), page.end(), std::byte{0});
  ASSERT_TRUE(client->submitRead(2, Bytes(), page));
  ASSERT_TRUE(client->wait().ok());
  EXPECT_EQ(page[77], std::byte{5});
}

}  // namespace
}  // namespace tidepool
