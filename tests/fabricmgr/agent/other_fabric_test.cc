// SPDX-License-Identifier: Apache-2.0
// A host and its programs when another manager than theirs answers: an empty store in the place of
// the right one, a copy, an older one. Nobody loses anything, and the agent says what is wrong.
#include <poll.h>

#include <filesystem>

#include "tests/fabricmgr/agent/processes_fixture.h"

namespace tidepool::agent {
namespace {

class OtherFabric : public AgentProcesses {
 protected:
  std::string store(const std::string& more = "") const { return (scratch_ / "fabric.db") + more; }
  std::string fabricOf(const std::string& path) { return get(path)["fabric"].get<std::string>(); }
  Json agentStatus() {
    Program asked({"agent", "--status", "--json", "--socket", socket_});
    const std::string line = asked.line();
    (void)asked.wait();
    return Json::parse(line, nullptr, false);
  }
  /// Asks until the agent says so: it asks the manager by itself.
  Json awaitAgent(const std::string& standing) {
    Json status;
    for (int i = 0; i < 300; ++i) {
      status = agentStatus();
      if (status.value("manager", "") == standing) return status;
      poll(nullptr, 0, 100);
    }
    ADD_FAILURE() << "not " << standing << ": " << status.dump();
    return status;
  }
  /// A program that has 4 MiB, full of 0x5a.
  void furnish() {
    startAgent();
    id_ = assign(4 * kMiB);
    client_ = connect();
    given_ = ask(*client_, 0);
    memset(given_.memory.data(), 0x5a, given_.size.value());
    fabric_id_ = fabricOf("/v1/status");
  }
  void expectKept() {
    AgentNotice notice;
    Status told;
    do {
      told = client_->wait(&notice, Nanoseconds(300'000'000));
    } while (told && notice.kind == agent_wire::NoticeKind::kLease);
    EXPECT_FALSE(told) << "it was told: " << notice.text;
    for (uint64_t at = 0; at < given_.size.value(); ++at) ASSERT_EQ(given_.at(at), 0x5a) << at;
  }

  uint64_t id_ = 0;
  std::string fabric_id_;
  std::unique_ptr<AgentClient> client_;
  Given given_;
};

TEST_F(OtherFabric, AStoreThatIsMissingEndsNobody) {
  furnish();
  killNow(manager_);
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
    if (!std::filesystem::exists(store(suffix))) continue;
    std::filesystem::rename(store(suffix), scratch_ / ("away" + std::string(suffix)));
  }
  {
    Program serve({"serve", "--config", scratch_ / "fabric.toml"});
    EXPECT_EQ(serve.wait(), 3);
    EXPECT_THAT(serve.errors(), testing::HasSubstr("fabricmgr init"));
    EXPECT_FALSE(std::filesystem::exists(store()));
    EXPECT_FALSE(std::filesystem::exists(store(".lock")));
  }
  // Somebody makes one all the same.
  initStore();
  startManager();
  const std::string other = fabricOf("/v1/status");
  EXPECT_NE(other, fabric_id_);
  const Json status = awaitAgent("away");
  EXPECT_THAT(status.value("trouble", ""), testing::HasSubstr(fabric_id_));
  EXPECT_THAT(status.value("trouble", ""), testing::HasSubstr(other));
  expectKept();
  // Another agent, that knows of it by the journal alone.
  killNow(agent_);
  startAgent();
  (void)awaitAgent("away");
  EXPECT_TRUE(get("/v1/hosts")["items"].empty()) << "it did not join the other one";
  killNow(manager_);
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
    std::filesystem::remove(store(suffix));
    if (!std::filesystem::exists(scratch_ / ("away" + std::string(suffix)))) continue;
    std::filesystem::rename(scratch_ / ("away" + std::string(suffix)), store(suffix));
  }
  startManager();
  (void)awaitAgent("member");
  EXPECT_EQ(stateOf(id_), "attached");
  for (uint64_t at = 0; at < given_.size.value(); ++at) ASSERT_EQ(given_.at(at), 0x5a) << at;
}

TEST_F(OtherFabric, AHostLeavesAFabricOnlyWhenItIsTold) {
  startAgent();
  awaitHost();
  killNow(manager_);
  std::filesystem::rename(store(), scratch_ / "away");
  for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(store(suffix));
  initStore();
  startManager();
  (void)awaitAgent("away");
  const std::vector<std::string> forget = {"agent", "--forget-fabric", "--journal",
                                           socket_ + ".journal"};
  {
    Program early(forget);
    EXPECT_EQ(early.wait(), 6) << "the agent is running";
  }
  killNow(agent_);
  {
    Program forgotten(forget);
    EXPECT_EQ(forgotten.wait(), 0);
  }
  startAgent();
  (void)awaitAgent("member");
  EXPECT_EQ(get("/v1/hosts")["items"].size(), 1u);
}

/// A copy of the store, started at the place where the agents look, while the manager is down.
TEST_F(OtherFabric, AnOlderTermIsNotListenedTo) {
  furnish();
  killNow(manager_);
  startManager();  // puts the log into the file, and is heard of
  (void)awaitAgent("member");
  {
    Program save({"backup", scratch_ / "copy.db", "--config", scratch_ / "fabric.toml"});
    ASSERT_EQ(save.wait(), 0) << save.errors();
  }
  for (int starts = 0; starts < 3; ++starts) {
    killNow(manager_);
    startManager();
  }
  (void)awaitAgent("member");
  const uint64_t term = get("/v1/status")["term"].get<uint64_t>();
  await([&] { return agentStatus().value("term", uint64_t{0}) == term; });
  killNow(manager_);
  std::ofstream(scratch_ / "copy.toml") << "state = \"" << scratch_ / "copy.db"
                                        << "\"\n[unix]\npath = \"" << scratch_ / "sock"
                                        << "\"\n";
  manager_ = std::make_unique<Program>(
      std::vector<std::string>{"serve", "--config", scratch_ / "copy.toml"});
  ASSERT_EQ(manager_->line().substr(0, 9), "listening");
  const Json status = awaitAgent("away");
  EXPECT_THAT(status.value("trouble", ""), testing::HasSubstr("term"));
  const Json health = get("/v1/health");
  EXPECT_EQ(health["health"], "error");
  EXPECT_THAT(health.dump(), testing::HasSubstr("FABRIC_SUPERSEDED"));
  expectKept();
  killNow(manager_);
  startManager();
  (void)awaitAgent("member");
  EXPECT_EQ(stateOf(id_), "attached");
}

/// The same as a device's: whoever reads it with a program of its own learns by whom it is
/// answered.
TEST_F(OtherFabric, EveryAnswerSaysWhose) {
  const std::string id = fabricOf("/v1/status");
  client::HttpClient client({"unix:" + (scratch_ / "sock"), "", "", "", 60, {}, nullptr});
  for (const char* path :
       {"/v1/status", "/v1/hosts/none", "/nowhere", "/metrics", "/v1/pools?x=1"}) {
    const client::Reply reply = client.get(path);
    EXPECT_EQ(reply.fabric, id) << path;
    EXPECT_EQ(reply.term, 1u) << path;
  }
  killNow(manager_);
  startManager();
  EXPECT_EQ(client.get("/v1/status").term, 2u);
}

}  // namespace
}  // namespace tidepool::agent
