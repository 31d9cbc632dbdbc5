// SPDX-License-Identifier: Apache-2.0
// A memory server with a remote tier on it and areas of rows in that, for tests of row channels. In
// machines with RDMA (fake_peer.h) rows go by it; elsewhere over TCP, or through a lane's double.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "fabricmgr/memserver/server.h"
#include "runtime/tier/remote_row_channel.h"
#include "runtime/tier/remote_tier.h"
#include "runtime/tier/row_channel.h"
#include "tests/transport/fake_peer.h"
#include "tests/transport/lane_double.h"
#include "tests/transport/wire_cutter.h"

namespace tidepool {

inline constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
inline constexpr ErrorCode kGood = ErrorCode{};

/// A server with a tier of `size` bytes on it.
struct House {
  explicit House(Bytes size, Nanoseconds timeout = kLong) {
    memserver::ServerOptions options;
    options.size = size;
    options.listen = testHost() + ":0";
    options.transport = testTransport();
    if (testTransport() == Transport::kTcp) options.one_sided = &lanes;
    auto started = memserver::Server::start(options);
    EXPECT_TRUE(started) << started.error().text();
    server = std::move(*started);
    FarSpec far;
    far.kind = farKind("remote");
    far.transport = testTransport();
    snprintf(far.target, sizeof far.target, "%s:%u", testHost().c_str(), server->port());
    auto opened = RemoteTier::open(far, timeout);
    EXPECT_TRUE(opened) << opened.error().text();
    tier = std::move(*opened);
  }
  /// `rows` rows of `row` bytes in frames of their own, from byte `offset` of these.
  RowArea area(uint64_t rows, uint64_t row, uint64_t offset = 0) {
    auto frames = tier->allocateArea(toPages(Bytes(offset + rows * row)));
    EXPECT_TRUE(frames) << frames.error().text();
    RowArea made;
    made.frames = *frames;
    made.offset = Bytes(offset);
    made.row = Bytes(row);
    made.rows = rows;
    return made;
  }
  std::unique_ptr<RowChannel> open(const RowArea& area) {
    auto channel = tier->openRows(area);
    EXPECT_TRUE(channel) << channel.error().text();
    return std::move(*channel);
  }

  /// A client of the tier's region, over TCP or through a lane's double; one whose connection goes
  /// through `cutter` makes it again.
  std::unique_ptr<RemoteClient> client(RowsBy by, uint32_t most = RowConnection::kMostRequests,
                                       const WireCutter* cutter = nullptr) {
    const wire::ServerHello& region = tier->region();
    wire::ClientHello hello;
    hello.kind = wire::HelloKind::kAttach;
    hello.region = region.region;
    hello.token = region.token;
    hello.epoch = region.epoch;
    const bool lane = by == RowsBy::kLane;
    const Endpoint at = cutter != nullptr ? cutter->endpoint() : loopback(server->port());
    auto client = RemoteClient::connect(at, hello,
                                        {.timeout = kLong,
                                         .reconnect = cutter != nullptr ? kLong : Nanoseconds(0),
                                         .max_in_flight = most,
                                         .transport = lane ? Transport::kVerbs : Transport::kTcp,
                                         .rows = by,
                                         .lanes = &lanes});
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  /// A connection over it.
  std::shared_ptr<RowConnection> connect(RowsBy by, uint32_t most = RowConnection::kMostRequests) {
    auto connection = RowConnection::create(client(by, most));
    EXPECT_TRUE(connection) << connection.error().text();
    return std::move(*connection);
  }
  /// A channel over it.
  std::unique_ptr<RowChannel> open(const RowArea& area, std::shared_ptr<RowConnection> connection) {
    return std::make_unique<RemoteRowChannel>(std::move(connection), area, Bytes(), *tier, traffic);
  }

  LaneDouble lanes;
  TierTraffic traffic;  // of channels that are not the tier's
  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<RemoteTier> tier;
};

/// Runs one request to its end.
inline ErrorCode finish(RowChannel& channel, const Status& queued) {
  EXPECT_TRUE(queued) << queued.error().text();
  return channel.wait().error;
}

}  // namespace tidepool
