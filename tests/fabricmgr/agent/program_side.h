// SPDX-License-Identifier: Apache-2.0
// What a program does that gets memory from an agent, a step a function, for tests. Nothing waits
// for a time: what is waited for is an event of the manager's or a notice of the agent's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/transport/agent_client.h"
#include "runtime/transport/client.h"

namespace tidepool::agent {

using Json = nlohmann::json;
using agent_wire::NoticeKind;
using agent_wire::Want;

inline constexpr Nanoseconds kPatience(30'000'000'000);

/// What a program was given.
struct Given {
  uint64_t id = 0;
  Epoch epoch{};
  Bytes size;
  std::vector<agent_wire::Piece> pieces;
  Mapping memory;  // the first piece, if it is a file's

  unsigned char& at(uint64_t offset) {
    return reinterpret_cast<unsigned char*>(memory.data())[offset];
  }
};

/// But for news of the lease, which come at any time.
inline AgentNotice next(AgentClient& client) {
  AgentNotice notice;
  Status got;
  do {
    got = client.wait(&notice, kPatience);
    EXPECT_TRUE(got) << got.error().text();
  } while (got && notice.kind == NoticeKind::kLease);
  return notice;
}
inline Given take(AgentNotice& notice) {
  Given given;
  EXPECT_EQ(notice.kind, NoticeKind::kRegion) << notice.text;
  given.id = notice.region;
  given.epoch = notice.epoch;
  given.size = notice.size;
  given.pieces.assign(notice.pieces.begin(), notice.pieces.end());
  if (!notice.files.empty()) {
    const agent_wire::Piece& piece = given.pieces.front();
    auto mapping = Mapping::sharedFile(notice.files[0].get(), Bytes(piece.offset), piece.length);
    EXPECT_TRUE(mapping);
    if (mapping) given.memory = std::move(*mapping);
  }
  return given;
}
inline Given ask(AgentClient& client, uint64_t size, Want want = Want::kAny) {
  EXPECT_TRUE(client.ask(1, Bytes(size), want));
  AgentNotice notice = next(client);
  return take(notice);
}
inline std::string askInVain(AgentClient& client, uint64_t size, ErrorCode expected,
                             Want want = Want::kAny) {
  EXPECT_TRUE(client.ask(1, Bytes(size), want));
  const AgentNotice notice = next(client);
  EXPECT_EQ(notice.kind, NoticeKind::kRefused);
  EXPECT_EQ(notice.error, expected) << notice.text;
  return notice.text;
}
/// Until the agent says of itself what it should.
inline void awaitStatus(AgentClient& client, const std::string& expected) {
  for (std::string said; said.find(expected) == std::string::npos;) {
    ASSERT_TRUE(client.askStatus(9));
    said = next(client).text;
  }
}
inline void giveBack(AgentClient& client, const Given& given) {
  EXPECT_TRUE(client.giveBack(2, given.id, given.epoch));
  EXPECT_EQ(next(client).kind, NoticeKind::kReturned);
}

/// Until the connection has broken and there is a new one, to an agent that listens again.
inline void reconnect(AgentClient& client) {
  AgentNotice notice;
  Status broken;
  do {
    broken = client.wait(&notice, kPatience);
  } while (broken && notice.kind == NoticeKind::kLease);
  EXPECT_FALSE(broken);
  EXPECT_EQ(broken.error().code(), ErrorCode::kUnreachable) << broken.error().text();
  const Status again = client.reconnect();
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(next(client).kind, NoticeKind::kWelcome);
}
inline void reclaim(AgentClient& client, const Given& given) {
  ASSERT_TRUE(client.reclaim(3, given.id, given.epoch));
  const AgentNotice kept = next(client);
  EXPECT_EQ(kept.kind, NoticeKind::kKept) << kept.text;
  EXPECT_EQ(kept.region, given.id);
}

/// What opens a region of a memory server.
inline wire::ClientHello helloOf(const Given& given) {
  EXPECT_EQ(given.pieces.size(), 1u);
  const agent_wire::Piece& piece = given.pieces.front();
  EXPECT_EQ(piece.kind, agent_wire::PieceKind::kServer);
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = piece.region;
  hello.token = piece.token;
  hello.epoch = given.epoch;
  return hello;
}
inline Result<std::unique_ptr<RemoteClient>> open(const Given& given,
                                                  const wire::ClientHello& hello) {
  return RemoteClient::connect(given.pieces.front().endpoint, hello, {.timeout = kPatience});
}
inline ErrorCode finish(RemoteClient& client, const Status& queued) {
  return queued ? client.wait().error : queued.error().code();
}

/// Returns when `is` holds, which is looked at after each event. `get` asks the manager.
inline void awaitChange(const std::function<Json(const std::string&)>& get,
                        const std::function<bool()>& is) {
  uint64_t since = get("/v1/status").value("index", uint64_t{0});
  for (int i = 0; i < 200; ++i) {
    if (is()) return;
    since =
        get("/v1/events?wait_ms=2000&since=" + std::to_string(since)).value("index", uint64_t{0});
  }
  FAIL() << "it did not come true: " << get("/v1/regions").dump() << get("/v1/hosts").dump();
}

}  // namespace tidepool::agent
