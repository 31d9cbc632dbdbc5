// SPDX-License-Identifier: Apache-2.0
// Manager and agent in this process, so that sanitizers see all of both: who gets which bytes in
// which order, and what becomes of regions that were handed over, taken or drained.
#include "fabricmgr/agent/agent.h"

#include <thread>

#include "fabricmgr/device/grant_log.h"
#include "fabricmgr/model/sealed_lines.h"
#include "tests/fabricmgr/agent/held_requests.h"
#include "tests/fabricmgr/agent/program_side.h"
#include "tests/fabricmgr/api/fabric_fixture.h"

namespace tidepool::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Nanoseconds kSecond(1'000'000'000);

class AgentTest : public api::Fabric {
 protected:
  ~AgentTest() override { stopAgent(); }

  void addPool(const std::string& device) {
    const std::string path = scratch_ / device;
    std::ofstream(path).close();
    std::filesystem::resize_file(path, kPoolBytes);
    (void)post("/v1/pools", {{"name", "cxl"}, {"class", "cxl"}});
    EXPECT_EQ(post("/v1/devices", {{"name", device}, {"pool", "cxl"}, {"address", path}}).status,
              201);
  }
  /// It makes its host known by itself.
  void startAgent(Nanoseconds lease = kSecond * 600) { startAgentAt("sock", lease); }
  void startAgentAt(const char* manager, Nanoseconds lease) {
    Options options;
    options.host = "node1";
    options.lease = lease;
    options.manager.address = "unix:" + (scratch_ / manager);
    options.socket = scratch_ / "agent.sock";
    options.journal = scratch_ / "journal";
    options.allowed.users = {geteuid()};
    auto agent = Agent::start(std::move(options), [](LogLevel, const std::string&) {});
    ASSERT_TRUE(agent) << agent.error().text();
    agent_ = std::move(*agent);
    thread_ = std::thread([this] { agent_->run(); });
  }
  void stopAgent() {
    if (!thread_.joinable()) return;
    agent_->stop();
    thread_.join();
    agent_.reset();
  }
  std::unique_ptr<AgentClient> connect() {
    auto client = AgentClient::connect((scratch_ / "agent.sock").c_str());
    EXPECT_TRUE(client) << client.error().text();
    if (!client) return nullptr;
    EXPECT_EQ(next(**client).kind, NoticeKind::kWelcome);
    return std::move(*client);
  }
  /// A program's connection to an agent that the manager knows.
  std::unique_ptr<AgentClient> connectToMember() {
    auto client = connect();
    awaitStatus(*client, "\"manager\":\"member\"");
    return client;
  }
  std::string stateOf(uint64_t region) {
    const api::Reply shown = get(pathOf(region, ""));
    return shown.status == 200 ? shown.json()["state"].get<std::string>() : "free";
  }
  void awaitState(uint64_t region, const std::string& state) {
    awaitChange([this](const std::string& path) { return get(path).json(); },
                [&] { return stateOf(region) == state; });
  }
  static std::string pathOf(uint64_t region, const std::string& what) {
    return "/v1/regions/" + std::to_string(region) + what;
  }
  std::string firstBytesOf(const std::string& device, uint64_t count) {
    std::string bytes(count, '?');
    std::ifstream(scratch_ / device, std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(count));
    return bytes;
  }
  /// What another manager would do that took the region from this host.
  void revokeInThePoolsRecord(const std::string& device, uint64_t region) {
    const std::string path = (scratch_ / device) + ".grants";
    auto grants = fabric::GrantLog::read(path, fabric::DeviceId(1));
    ASSERT_TRUE(grants) << grants.error().text();
    for (fabric::GrantReport& report : *grants) {
      if (report.grant.region.value() != region) continue;
      report.grant.state = fabric::GrantState::kRevoked;
      std::ofstream(path, std::ios::app) << fabric::sealedLine(fabric::GrantLog::lineOf(report));
    }
  }

  std::unique_ptr<Agent> agent_;
  std::thread thread_;
};

// What a program asks for before the lease is known waits for it, and is not refused.
TEST_F(AgentTest, WhatIsAskedForBeforeTheFirstHeartbeatIsAnsweredWaits) {
  addPool("dev0");
  startAgent();
  (void)connectToMember();
  const uint64_t standing = assign("node1", 4 * kMiB);
  stopAgent();
  HeldRequests between(scratch_ / "between", scratch_ / "sock", "/heartbeat ");
  startAgentAt("between", kSecond * 600);
  const auto client = connect();
  ASSERT_TRUE(client->ask(1, Bytes(0), Want::kAny));
  AgentNotice notice;
  const Status early = client->wait(&notice, kSecond / 4);  // time for the list, which is not held
  ASSERT_FALSE(early) << notice.text;
  EXPECT_EQ(early.error().code(), ErrorCode::kTimedOut);
  between.release();
  notice = next(*client);
  EXPECT_EQ(take(notice).id, standing);
}

TEST_F(AgentTest, HandsRegionsOutAndTakesThemBack) {
  addPool("dev0");
  startAgent();
  const auto client = connectToMember();
  const uint64_t standing = assign("node1", 4 * kMiB);
  for (int i = 0; i < 2; ++i) {  // the second time it has been used, and is empty all the same
    Given given = ask(*client, 0);
    EXPECT_EQ(given.id, standing);
    EXPECT_EQ(given.at(4 * kMiB - 1), 0);
    given.at(4 * kMiB - 1) = 1;
    given.memory = Mapping();
    giveBack(*client, given);
  }
  const Given held = ask(*client, 0);
  const Given on_demand = ask(*client, 8 * kMiB);
  EXPECT_NE(on_demand.id, standing);
  giveBack(*client, on_demand);
  awaitState(on_demand.id, "free");
  EXPECT_EQ(post(pathOf(standing, "/drain"), Json::object()).status, 202);
  EXPECT_EQ(next(*client).kind, NoticeKind::kDrain);
  giveBack(*client, held);
  awaitState(standing, "free");
}

TEST_F(AgentTest, ManyProgramsShareNothing) {
  addPool("dev0");
  startAgent();
  (void)connectToMember();
  std::vector<std::thread> programs;
  for (unsigned char own = 1; own <= 4; ++own) {
    programs.emplace_back([this, own] {
      const auto client = connect();
      for (int i = 0; i < 5; ++i) {
        Given given = ask(*client, 2 * kMiB);
        EXPECT_EQ(given.at(0), 0);
        given.at(0) = own;
        given.at(given.size.value() - 1) = own;
        ASSERT_TRUE(client->askStatus(3));
        EXPECT_EQ(next(*client).kind, NoticeKind::kStatus);
        EXPECT_EQ(given.at(0), own);
        given.memory = Mapping();
        giveBack(*client, given);
      }
    });
  }
  for (std::thread& program : programs) program.join();
}

TEST_F(AgentTest, BytesKeepTheirOrderOverDevices) {
  furnish();
  addPool("dev1");
  const auto only = [this](const std::string& device, const std::string& other) {
    EXPECT_EQ(post("/v1/devices/" + device + "/uncordon", Json::object()).status, 200);
    EXPECT_EQ(post("/v1/devices/" + other + "/cordon", Json::object()).status, 200);
  };
  only("dev0", "dev1");
  const uint64_t id = assign("node1", 4 * kMiB);
  only("dev1", "dev0");
  EXPECT_EQ(post(pathOf(id, "/resize"), {{"size_bytes", 6 * kMiB}}).status / 100, 2);
  only("dev0", "dev1");
  EXPECT_EQ(post(pathOf(id, "/resize"), {{"size_bytes", 8 * kMiB}}).status / 100, 2);
  startAgent();
  const auto client = connectToMember();
  const Given given = ask(*client, 0);
  ASSERT_EQ(given.pieces.size(), 3u) << "the end lies behind the begin, but is not next to it";
  EXPECT_EQ(given.size, Bytes(8 * kMiB));
  const uint32_t files[] = {0, 1, 0};
  const uint64_t offsets[] = {0, 0, 4 * kMiB};
  const uint64_t lengths[] = {4 * kMiB, 2 * kMiB, 2 * kMiB};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(given.pieces[i].file, files[i]) << i;
    EXPECT_EQ(given.pieces[i].offset, offsets[i]) << i;
    EXPECT_EQ(given.pieces[i].length, Bytes(lengths[i])) << i;
  }
  // What is cut off is the end of this order.
  EXPECT_EQ(post(pathOf(id, "/resize"), {{"size_bytes", 6 * kMiB}}).status / 100, 2);
  const AgentNotice gone = next(*client);
  EXPECT_EQ(gone.kind, NoticeKind::kGone);
  EXPECT_EQ(gone.size, Bytes(6 * kMiB));
}

TEST_F(AgentTest, ARegionThatWasHandedOverIsErasedBeforeAProgramGetsIt) {
  furnish();
  const uint64_t size = 2 * kMiB;
  const uint64_t id = assign("node2", size);
  std::ofstream(scratch_ / "pool0", std::ios::in | std::ios::binary) << "data of node2";
  const auto transferred = post(pathOf(id, "/transfer"), {{"host", "node1"}, {"force", true}});
  ASSERT_EQ(transferred.status, 202) << transferred.body;
  EXPECT_EQ(finish(transferred.json()["operation"]), "done");
  startAgent();
  const auto client = connectToMember();
  awaitStatus(*client, "\"regions\":1");
  EXPECT_EQ(firstBytesOf("pool0", 13), "data of node2") << "it may still be handed on";
  const Given given = ask(*client, 0);
  EXPECT_EQ(given.id, id);
  EXPECT_TRUE(firstBytesOf("pool0", size) == std::string(size, '\0'));
}

TEST_F(AgentTest, WhatWasTakenWhileTheManagerWasAwayIsLost) {
  addPool("dev0");
  startAgent(kSecond * 4);
  const auto client = connectToMember();
  const uint64_t taken = assign("node1", 8 * kMiB);
  const uint64_t kept = assign("node1", 6 * kMiB);
  const uint64_t idle = assign("node1", 4 * kMiB);
  Given lost = ask(*client, 8 * kMiB);
  ASSERT_EQ(lost.id, taken);
  lost.at(0) = 7;
  const Given held = ask(*client, 6 * kMiB);
  ASSERT_EQ(held.id, kept);
  // An agent that is started anew finds out where the regions lie that it has not handed out
  // itself.
  stopAgent();
  startAgent(kSecond * 4);
  reconnect(*client);
  reclaim(*client, lost);
  reclaim(*client, held);
  awaitStatus(*client, "\"manager\":\"member\"");
  const Given returned = ask(*client, 4 * kMiB);
  ASSERT_EQ(returned.id, idle);
  giveBack(*client, returned);
  awaitStatus(*client, "\"ready\":1");
  stop();
  revokeInThePoolsRecord("dev0", taken);
  const AgentNotice gone = next(*client);  // once the lease is over
  EXPECT_EQ(gone.kind, NoticeKind::kGone);
  EXPECT_EQ(gone.region, taken);
  EXPECT_EQ(gone.size, Bytes());
  EXPECT_EQ(gone.error, ErrorCode::kStaleEpoch);
  EXPECT_EQ(lost.at(0), 7) << "the agent has no right to these bytes any more";
  // What is still granted is kept; what stands ready may be another host's in a moment.
  awaitStatus(*client, "\"held\":1");
  EXPECT_THAT(askInVain(*client, 4 * kMiB, ErrorCode::kUnreachable), HasSubstr("lease"));
  reclaim(*client, held);
}

TEST_F(AgentTest, ADrainSaysHowMuchTimeThereIs) {
  addPool("dev0");
  startAgent();
  const auto client = connectToMember();
  const uint64_t id = assign("node1", 4 * kMiB);
  const Given given = ask(*client, 0);
  EXPECT_EQ(post(pathOf(id, "/drain"), Json::object()).status, 202);
  AgentNotice drain = next(*client);
  EXPECT_EQ(drain.kind, NoticeKind::kDrain);
  EXPECT_THAT(drain.text, HasSubstr("region " + std::to_string(id)));
  EXPECT_THAT(drain.text, Not(HasSubstr("by force")));
  EXPECT_EQ(get(pathOf(id, "")).json()["drain_left_ms"], 0);
  EXPECT_EQ(post(pathOf(id, "/resume"), Json::object()).status, 200);
  EXPECT_EQ(next(*client).kind, NoticeKind::kResume);
  EXPECT_EQ(post(pathOf(id, "/drain"), {{"deadline_ms", 3'600'000}}).status, 202);
  drain = next(*client);
  EXPECT_THAT(drain.text, HasSubstr("by force"));
  const auto left = get(pathOf(id, "")).json()["drain_left_ms"].get<uint64_t>();
  EXPECT_GT(left, 0u);
  EXPECT_LE(left, 3'600'000u);
  // Whoever comes back later is told, too.
  reclaim(*client, given);
  EXPECT_THAT(next(*client).text, HasSubstr("by force"));
}

TEST_F(AgentTest, AHostThatWasRemovedStaysRemoved) {
  addPool("dev0");
  startAgent();
  const auto client = connectToMember();
  EXPECT_EQ(post("/v1/hosts/node1/remove", Json::object()).status, 200);
  awaitStatus(*client, "\"manager\":\"removed\"");
  askInVain(*client, 4 * kMiB, ErrorCode::kNotFound);
  EXPECT_TRUE(get("/v1/hosts").json()["items"].empty());
  EXPECT_EQ(post("/v1/hosts", {{"name", "node1"}, {"lease_ms", 600'000}}).status, 201);
  awaitStatus(*client, "\"manager\":\"member\"");
  EXPECT_EQ(ask(*client, 4 * kMiB).size, Bytes(4 * kMiB));
}

}  // namespace
}  // namespace tidepool::agent
