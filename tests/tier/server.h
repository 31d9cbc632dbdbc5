// SPDX-License-Identifier: Apache-2.0
// A memory server in the test's own process, and waiting for what is asked of one.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/fetch_channel.h"
#include "tests/transport/fake_peer.h"

namespace tidepool {

/// At `port`, or any; by RDMA too, where fake_peer.h has a device for it.
inline std::unique_ptr<memserver::Server> serve(Bytes size, uint16_t port = 0) {
  memserver::ServerOptions options;
  options.size = size;
  options.listen = testHost() + ":" + std::to_string(port);
  options.transport = testTransport();
  auto server = memserver::Server::start(options);
  EXPECT_TRUE(server) << server.error().text();
  return std::move(*server);
}

/// How the one request in flight ends, or how it was refused.
inline ErrorCode finish(FetchChannel& channel, const Status& submitted) {
  if (!submitted) return submitted.error().code();
  FetchCompletion done;
  while (channel.poll({&done, 1}) == 0) {
    pollfd waiting = {channel.fd(), channel.events(), 0};
    poll(&waiting, 1, static_cast<int>(channel.timeToDeadline().value() / 1'000'000 + 1));
  }
  return done.error;
}

}  // namespace tidepool
