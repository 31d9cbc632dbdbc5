// SPDX-License-Identifier: Apache-2.0
// What a RowChannel says when its memory server dies, hangs, dies within an answer or fences it
// off, and when its frames were taken away: each request ends once, with an error.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "runtime/tier/remote_row_channel.h"
#include "tests/tier/row_house.h"
#include "tests/transport/fake_peer.h"

namespace tidepool {
namespace {

/// Until nothing is in flight: how often each tag ended with each code.
std::map<uint64_t, std::vector<ErrorCode>> drain(RowChannel& channel) {
  std::map<uint64_t, std::vector<ErrorCode>> ended;
  FetchCompletion done[8];
  while (channel.inFlight() > 0) {
    size_t count = channel.poll(done);
    if (count == 0) done[count++] = channel.wait();
    for (size_t i = 0; i < count; ++i) ended[done[i].tag].push_back(done[i].error);
  }
  return ended;
}

TEST(RowChannel, AKilledServerEndsEachRequestOnce) {
  House house(Bytes(64 * kMiB));
  auto channel = house.open(house.area(4096, 1024));
  std::vector<uint64_t> rows(channel->mostRows());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 4096;
  std::vector<std::byte> memory(rows.size() * 1024);
  for (uint64_t tag = 0; tag < 20; ++tag) {
    const Status queued = tag % 2 == 0 ? channel->submitRead(tag, rows, memory.data())
                                       : channel->submitWrite(tag, rows, memory.data());
    ASSERT_TRUE(queued);
  }
  ASSERT_TRUE(channel->flush());
  house.server->stop();
  const auto ended = drain(*channel);
  EXPECT_EQ(ended.size(), 20u);
  for (const auto& [tag, codes] : ended) EXPECT_EQ(codes.size(), 1u) << tag;
  EXPECT_EQ(ended.at(19).front(), ErrorCode::kUnreachable);
  EXPECT_TRUE(channel->failed());
  EXPECT_NE(strstr(channel->reason(), house.tier->name()), nullptr) << channel->reason();
  EXPECT_EQ(channel->submitRead(1, rows, memory.data()).error().code(), ErrorCode::kUnreachable);
  EXPECT_EQ(channel->inFlight(), 0u);
  EXPECT_FALSE(house.tier->openRows(channel->area()));
}

TEST(RowChannel, AFencedRegionRefusesAndNothingIsWritten) {
  House house{Bytes(kMiB)};
  auto channel = house.open(house.area(100, 64));
  ASSERT_TRUE(house.server->fence(house.tier->region().region, Epoch(2)));
  std::vector<std::byte> memory(64, std::byte{5});
  const uint64_t row[] = {1};
  EXPECT_EQ(finish(*channel, channel->submitWrite(1, row, memory.data())), ErrorCode::kStaleEpoch);
  EXPECT_EQ(finish(*channel, channel->submitRead(2, row, memory.data())), ErrorCode::kStaleEpoch);
}

TEST(RowChannel, FramesThatWereTakenAwayAreLost) {
  House house{Bytes(kMiB)};
  auto channel = house.open(house.area(100, 64));
  house.tier->forsake(FrameIndex(1));
  std::vector<std::byte> memory(64);
  const uint64_t row[] = {1};
  EXPECT_EQ(channel->submitWrite(1, row, memory.data()).error().code(), ErrorCode::kLost);
  EXPECT_EQ(channel->submitRead(1, row, memory.data()).error().code(), ErrorCode::kLost);
}

/// A channel of 100 rows of 64 bytes over a connection to `peer`.
std::unique_ptr<RowChannel> channelTo(const ScriptedServer& peer, House& house,
                                      Nanoseconds timeout) {
  auto client = RemoteClient::connect(peer.endpoint(), {}, {.timeout = timeout});
  EXPECT_TRUE(client);
  auto connection = RowConnection::create(std::move(*client));
  EXPECT_TRUE(connection);
  return house.open(house.area(100, 64), std::move(*connection));
}

TEST(RowChannel, AHungServerIsGivenUpInTime) {
  House house{Bytes(kMiB)};
  std::byte sink[64];
  ScriptedServer server([&](int socket) {
    while (recv(socket, sink, sizeof sink, 0) > 0) {
    }
  });
  auto channel = channelTo(server, house, Nanoseconds(50'000'000));
  std::vector<std::byte> memory(64, std::byte{7});
  const uint64_t row[] = {1};
  for (uint64_t tag = 0; tag < 5; ++tag) {
    ASSERT_TRUE(channel->submitRead(tag, row, memory.data()));
  }
  const auto ended = drain(*channel);
  ASSERT_EQ(ended.size(), 5u);
  for (const auto& [tag, codes] : ended) {
    EXPECT_EQ(codes, std::vector<ErrorCode>{ErrorCode::kTimedOut}) << tag;
  }
  EXPECT_EQ(memory, std::vector<std::byte>(64, std::byte{7}));
  channel.reset();
}

TEST(RowChannel, AServerThatDiesWithinAnAnswerFailsIt) {
  House house{Bytes(kMiB)};
  ScriptedServer server([](int socket) {
    std::byte request[wire::kRequestSize + 2 * wire::kRowOffsetSize];
    EXPECT_EQ(recv(socket, request, sizeof request, MSG_WAITALL), sizeof request);
    std::byte answer[wire::kResponseSize + 100] = {};
    wire::encode({.status = 0, .tag = 3, .payload = 128},
                 std::span(answer).first<wire::kResponseSize>());
    EXPECT_EQ(::send(socket, answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
  });
  auto channel = channelTo(server, house, kLong);
  std::vector<std::byte> memory(128);
  const uint64_t rows[] = {1, 2};
  ASSERT_TRUE(channel->submitRead(3, rows, memory.data()));
  const FetchCompletion done = channel->wait();
  EXPECT_EQ(done.tag, 3u);
  EXPECT_EQ(done.error, ErrorCode::kUnreachable);
  EXPECT_EQ(channel->inFlight(), 0u);
}

}  // namespace
}  // namespace tidepool
