// SPDX-License-Identifier: Apache-2.0
// Channels that share a connection: however many there are, their threads against models of their
// rows, closing while requests are in flight, room that others have, and what ends with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/tier/row_connections.h"
#include "tests/tier/row_house.h"

namespace tidepool {
namespace {

constexpr uint64_t kRows = 300, kRow = 48;

/// Until the server has seen all that ended.
void awaitConnections(const House& house, uint64_t wanted) {
  while (house.server->counters().connections.load() != wanted) std::this_thread::yield();
}

TEST(RowSharing, AnyNumberOfChannelsHasAFewConnections) {
  House house(Bytes(64 * kMiB));
  const uint64_t before = house.server->counters().connections.load();
  std::vector<std::unique_ptr<RowChannel>> channels;
  for (size_t i = 0; i < 300; ++i) {
    channels.push_back(house.open(house.area(kRows, kRow)));
    const uint64_t now = house.server->counters().connections.load() - before;
    EXPECT_EQ(now, std::min(i + 1, RowConnections::kMost));
  }
  std::vector<std::byte> rows(3 * kRow);
  const uint64_t numbers[] = {1, 299, 77};
  for (size_t i = 0; i < channels.size(); ++i) {
    std::fill(rows.begin(), rows.end(), static_cast<std::byte>(i));
    ASSERT_EQ(finish(*channels[i], channels[i]->submitWrite(i, numbers, rows.data())), kGood);
  }
  for (size_t i = 0; i < channels.size(); ++i) {
    ASSERT_EQ(finish(*channels[i], channels[i]->submitRead(i, numbers, rows.data())), kGood);
    EXPECT_EQ(rows, std::vector<std::byte>(rows.size(), static_cast<std::byte>(i)));
  }
  std::shuffle(channels.begin(), channels.end(), std::mt19937_64(5));
  channels.resize(1);
  // The channels that are left have the connections of no others.
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(finish(*channels[0], channels[0]->submitRead(1, numbers, rows.data())), kGood);
  }
  awaitConnections(house, before + 1);
  channels.clear();
  awaitConnections(house, before);
}

/// A channel of a thread, with a model of its rows, that comes and goes.
class Actor {
 public:
  Actor(House& house, std::shared_ptr<RowConnection> connection, uint64_t seed)
      : house_(house), connection_(std::move(connection)), random_(seed) {}
  void act() {
    if (channel_ == nullptr) return open();
    switch (random_() % 16) {
      case 0:
        return close();
      case 1:
      case 2:
        return poll();
      case 3:
      case 4:
        return wait();
      case 5:
        EXPECT_TRUE(channel_->flush());
        return;
      default:
        return submit();
    }
  }
  void finish() {
    while (channel_ != nullptr && channel_->inFlight() > 0) ended(channel_->wait());
    close();
  }
  uint64_t reads() const { return reads_; }

 private:
  struct Request {
    std::vector<std::byte> memory, expected;
  };
  void open() {
    area_ = house_.area(kRows, kRow);
    channel_ = house_.open(area_, connection_);
    model_.assign(kRows * kRow, std::byte{0});
    std::vector<uint64_t> all(kRows);
    for (uint64_t i = 0; i < kRows; ++i) all[i] = i;
    // Others had these frames before, and may have ended with requests in flight.
    EXPECT_EQ(tidepool::finish(*channel_, channel_->submitWrite(0, all, model_.data())), kGood);
  }
  /// With requests in flight: their memory is the caller's again at once.
  void close() {
    if (channel_ == nullptr) return;
    channel_.reset();
    for (auto& [tag, request] : requests_) {
      std::fill(request.memory.begin(), request.memory.end(), std::byte{0xee});
      left_.push_back(std::move(request.memory));
    }
    requests_.clear();
    house_.tier->release(area_.frames);
    for (const std::vector<std::byte>& memory : left_) {
      EXPECT_TRUE(std::all_of(memory.begin(), memory.end(),
                              [](std::byte one) { return one == std::byte{0xee}; }));
    }
    if (left_.size() > 64) left_.clear();
  }
  void poll() {
    FetchCompletion done[3];
    const size_t count = channel_->poll(done);
    for (size_t i = 0; i < count; ++i) ended(done[i]);
  }
  void wait() {
    if (channel_->inFlight() > 0) ended(channel_->wait());
  }
  void submit() {
    std::vector<uint64_t> rows(1 + random_() % 40);
    for (uint64_t& row : rows) row = random_() % kRows;
    const uint64_t tag = next_++;
    Request& request = requests_[tag];
    request.memory.assign(rows.size() * kRow, static_cast<std::byte>(random_()));
    const bool write = random_() % 2 == 0;
    Status queued = write ? channel_->submitWrite(tag, rows, request.memory.data())
                          : channel_->submitRead(tag, rows, request.memory.data());
    if (!queued) {
      EXPECT_EQ(queued.error().code(), ErrorCode::kNoSpace) << queued.error().text();
      requests_.erase(tag);
      return wait();
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      std::byte* const row = model_.data() + rows[i] * kRow;
      if (write) {
        memcpy(row, request.memory.data() + i * kRow, kRow);
      } else {
        request.expected.insert(request.expected.end(), row, row + kRow);
      }
    }
  }
  void ended(const FetchCompletion& done) {
    EXPECT_TRUE(done.ok()) << errorCodeName(done.error);
    const auto request = requests_.extract(done.tag);
    ASSERT_FALSE(request.empty()) << "ended twice, or another's";
    if (request.mapped().expected.empty()) return;
    EXPECT_TRUE(request.mapped().memory == request.mapped().expected) << done.tag;
    ++reads_;
  }

  House& house_;
  const std::shared_ptr<RowConnection> connection_;
  std::mt19937_64 random_;
  RowArea area_;
  std::unique_ptr<RowChannel> channel_;
  std::vector<std::byte> model_;
  std::map<uint64_t, Request> requests_;
  std::vector<std::vector<std::byte>> left_;  // that requests of a closed channel had
  uint64_t next_ = 1, reads_ = 0;
};

struct Crowd {
  RowsBy by;
  uint32_t most;                               // requests in flight on the connection
  uint64_t pieces_until_failure = UINT64_MAX;  // of a lane
  const char* name;
};

class RowSharingCrowd : public testing::TestWithParam<Crowd> {};

TEST_P(RowSharingCrowd, OfThreadsAgainstModels) {
  constexpr size_t kThreads = 4, kChannels = 3, kSteps = 3000;
  House house(Bytes(64 * kMiB));
  house.lanes.pieces_until_failure = GetParam().pieces_until_failure;
  const auto connection = house.connect(GetParam().by, GetParam().most);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> reads{0};
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::unique_ptr<Actor>> actors;
      for (size_t i = 0; i < kChannels; ++i) {
        actors.push_back(std::make_unique<Actor>(house, connection, thread * kChannels + i));
      }
      std::mt19937_64 random(thread);
      for (size_t step = 0; step < kSteps; ++step) actors[random() % kChannels]->act();
      for (auto& actor : actors) {
        actor->finish();
        reads += actor->reads();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(reads.load(), kSteps / 4);
  EXPECT_EQ(house.tier->used(), Bytes());
  EXPECT_FALSE(connection->failed());
}

// A connection with little room: a thread's first request waits for those of others to end.
INSTANTIATE_TEST_SUITE_P(
    All, RowSharingCrowd,
    testing::Values(
        Crowd{.by = RowsBy::kServer, .most = RowConnection::kMostRequests, .name = "tcp"},
        Crowd{.by = RowsBy::kServer, .most = 4, .name = "tcpWithLittleRoom"},
        Crowd{.by = RowsBy::kLane, .most = 64, .name = "lane"},
        Crowd{.by = RowsBy::kLane,
              .most = 64,
              .pieces_until_failure = 20'000,
              .name = "laneThatFails"}),
    [](const auto& named) { return std::string(named.param.name); });

TEST(RowSharing, TheFirstRequestOfAChannelFindsRoomByItself) {
  House house{Bytes(kMiB)};
  const auto connection = house.connect(RowsBy::kServer, 4);
  auto full = house.open(house.area(kRows, kRow), connection);
  auto other = house.open(house.area(kRows, kRow), connection);
  std::vector<std::byte> from(kRow, std::byte{3}), to(kRow), others(kRow, std::byte{4});
  const uint64_t row[] = {1};
  ASSERT_TRUE(full->submitWrite(1, row, from.data()));
  for (uint64_t tag = 2; tag < 5; ++tag) ASSERT_TRUE(full->submitRead(tag, row, to.data()));
  EXPECT_EQ(full->submitRead(5, row, to.data()).error().code(), ErrorCode::kNoSpace);
  // Nothing was sent so far, and nobody else is there to receive.
  EXPECT_EQ(finish(*other, other->submitWrite(9, row, others.data())), kGood);
  for (uint64_t tag = 1; tag < 5; ++tag) {
    const FetchCompletion done = full->wait();
    EXPECT_EQ(done.tag, tag);
    EXPECT_TRUE(done.ok());
  }
  EXPECT_EQ(to, from);
  EXPECT_EQ(full->inFlight(), 0u);
}

TEST(RowSharing, AServerThatIsKilledEndsEachRequestOfEachChannelOnce) {
  constexpr size_t kChannels = 40;
  House house(Bytes(64 * kMiB));
  std::vector<std::unique_ptr<RowChannel>> channels;
  for (size_t i = 0; i < kChannels; ++i) channels.push_back(house.open(house.area(kRows, kRow)));
  std::vector<uint64_t> rows(kRows);
  std::atomic<size_t> begun{0}, failed{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::byte> memory(kRows * kRow);
      for (bool all_failed = false; !all_failed;) {
        all_failed = true;
        for (size_t i = thread; i < kChannels; i += 4) {
          RowChannel& channel = *channels[i];
          uint64_t queued = 0;
          while (queued < 3 && channel.submitRead(queued, rows, memory.data())) ++queued;
          for (uint64_t tag = 0; tag < queued; ++tag) EXPECT_EQ(channel.wait().tag, tag);
          EXPECT_EQ(channel.inFlight(), 0u);
          all_failed = all_failed && channel.failed();
          ++begun;
        }
      }
      ++failed;
    });
  }
  while (begun.load() < 4 * kChannels) std::this_thread::yield();
  house.server->stop();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 4u);
  std::vector<std::byte> memory(kRows * kRow);
  for (const auto& channel : channels) {
    EXPECT_EQ(channel->submitRead(1, rows, memory.data()).error().code(), ErrorCode::kUnreachable);
    EXPECT_NE(strstr(channel->reason(), house.tier->name()), nullptr) << channel->reason();
  }
  EXPECT_FALSE(house.tier->openRows(channels[0]->area()));
}

TEST(RowSharing, AConnectionThatFailedIsNotGivenToNewChannels) {
  ScriptedServer server([](int) {});
  House house{Bytes(kMiB)};
  RowConnections connections;
  size_t made = 0;
  const auto share = [&] {
    auto connection = connections.share([&]() -> Result<std::unique_ptr<RemoteClient>> {
      if (made++ > 0) return house.client(RowsBy::kServer);
      return RemoteClient::connect(server.endpoint(), {}, {.timeout = kLong});
    });
    EXPECT_TRUE(connection);
    return *connection;
  };
  // All of the places, of which the first is to fail.
  std::vector<std::shared_ptr<RowConnection>> kept;
  for (size_t i = 0; i < RowConnections::kMost; ++i) kept.push_back(share());
  EXPECT_EQ(made, RowConnections::kMost);
  EXPECT_NE(std::find(kept.begin(), kept.end(), share()), kept.end());
  EXPECT_EQ(made, RowConnections::kMost);
  RowConnection::Port port;
  std::byte memory[kRow];
  const uint64_t row[] = {0};
  ASSERT_TRUE(kept[0]->submit(port, {.direction = RowRequest::Direction::kRead,
                                     .tag = 1,
                                     .rows = row,
                                     .memory = memory,
                                     .base = 0,
                                     .row = Bytes(kRow),
                                     .pieces = 1}));
  EXPECT_EQ(kept[0]->wait(port).error, ErrorCode::kUnreachable);
  EXPECT_EQ(std::find(kept.begin(), kept.end(), share()), kept.end());
  EXPECT_EQ(made, RowConnections::kMost + 1);
}

}  // namespace
}  // namespace tidepool
