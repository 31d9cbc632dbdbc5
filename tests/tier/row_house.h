// SPDX-License-Identifier: Apache-2.0
// A memory server with a remote tier on it and areas of rows in that, for tests of row channels.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "fabricmgr/memserver/server.h"
#include "runtime/tier/remote_tier.h"
#include "runtime/tier/row_channel.h"

namespace tidepool {

inline constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
inline constexpr ErrorCode kGood = ErrorCode{};

/// A server with a tier of `size` bytes on it.
struct House {
  explicit House(Bytes size, Nanoseconds timeout = kLong) {
    memserver::ServerOptions options;
    options.size = size;
    auto started = memserver::Server::start(options);
    EXPECT_TRUE(started) << started.error().text();
    server = std::move(*started);
    FarSpec far;
    far.kind = FarKind::kRemote;
    snprintf(far.target, sizeof far.target, "127.0.0.1:%u", server->port());
    auto opened = RemoteTier::open(far, timeout);
    EXPECT_TRUE(opened) << opened.error().text();
    tier = std::move(*opened);
  }
  /// `rows` rows of `row` bytes in frames of their own, from byte `offset` of these.
  RowArea area(uint64_t rows, uint64_t row, uint64_t offset = 0) {
    auto frames = tier->allocateArea(Bytes(offset + rows * row));
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

  std::unique_ptr<memserver::Server> server;
  std::unique_ptr<RemoteTier> tier;
};

/// Runs one request to its end.
inline ErrorCode finish(RowChannel& channel, const Status& queued) {
  EXPECT_TRUE(queued) << queued.error().text();
  return channel.wait().error;
}

}  // namespace tidepool
