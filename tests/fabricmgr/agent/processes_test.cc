// SPDX-License-Identifier: Apache-2.0
// Manager, agent and programs, each a process: who gets which bytes, and what each of them sees
// when one of the others is stopped, killed and started again.
#include <unistd.h>

#include "fabricmgr/agent/journal.h"
#include "tests/fabricmgr/agent/processes_fixture.h"

namespace tidepool::agent {
namespace {

using ::testing::HasSubstr;

TEST_F(AgentProcesses, HandsOutWhatOperatorsAssigned) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  EXPECT_EQ(given.id, id);
  EXPECT_EQ(given.size, Bytes(4 * kMiB));
  ASSERT_TRUE(given.memory.valid());
  given.at(0) = 1;
  given.at(4 * kMiB - 1) = 1;
  EXPECT_THAT(askInVain(*client, 0, ErrorCode::kNoSpace), HasSubstr("region assign"));
}

TEST_F(AgentProcesses, GetsMoreFromTheManagerAndGivesItBack) {
  startAgent();
  awaitHost();
  const auto client = connect();
  Given first = ask(*client, 8 * kMiB);
  Given second = ask(*client, 8 * kMiB);
  EXPECT_NE(first.id, second.id);
  EXPECT_EQ(get("/v1/regions")["items"].size(), 2u);
  first.at(5) = 7;
  EXPECT_EQ(second.at(5), 0);
  askInVain(*client, 1024 * kMiB, ErrorCode::kNoSpace);
  first.memory = Mapping();
  giveBack(*client, first);
  await([&] { return stateOf(first.id) == "free"; });
  EXPECT_EQ(get("/v1/regions/" + std::to_string(first.id) + "/evidence")["items"].size(), 1u);
  EXPECT_EQ(stateOf(second.id), "attached");
}

TEST_F(AgentProcesses, AProgramThatIsKilledGivesBackAndTheNextOneReadsZeros) {
  startAgent();
  const uint64_t standing = assign(4 * kMiB);
  uint64_t on_demand = 0;
  {
    OtherProgram other([&] {
      auto client = connect();
      Given given = ask(*client, 0);
      EXPECT_EQ(given.id, standing);
      memset(given.memory.data(), 0x5a, given.size.value());
      (void)ask(*client, 6 * kMiB);
      return client;
    });
    ASSERT_TRUE(other.done());
    on_demand = get("/v1/regions")["items"].back().value("id", uint64_t{0});
    ASSERT_NE(on_demand, standing);
  }
  await([&] { return stateOf(on_demand) == "free"; });
  expectZeros(standing);
}

TEST_F(AgentProcesses, ADrainEndsWhenTheProgramHasMovedOff) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  const Given given = ask(*client, 0);
  post("/v1/regions/" + std::to_string(id) + "/drain", Json::object());
  const AgentNotice drain = next(*client);
  EXPECT_EQ(drain.kind, NoticeKind::kDrain);
  EXPECT_EQ(drain.region, id);
  using agent_wire::Waits;
  ASSERT_TRUE(client->reportLeft(id, given.epoch, Bytes(12345), Waits::kRoom));
  // The report is not an event: it is looked for, as a person would.
  std::string text;
  const auto operation = get("/v1/regions/" + std::to_string(id)).value("operation", uint64_t{0});
  while (text.find("12345") == std::string::npos) {
    text = get("/v1/operations/" + std::to_string(operation)).value("text", "");
  }
  EXPECT_NE(text.find("process " + std::to_string(getpid()) + " waits: there is no room"),
            std::string::npos)
      << text;
  EXPECT_EQ(stateOf(id), "draining");
  giveBack(*client, given);
  await([&] { return stateOf(id) == "free"; });
  EXPECT_EQ(get("/v1/operations/" + std::to_string(operation))["state"], "done");
}

TEST_F(AgentProcesses, ADrainThatIsCalledOffIsToldToo) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  const Given given = ask(*client, 0);
  post("/v1/regions/" + std::to_string(id) + "/drain", Json::object());
  EXPECT_EQ(next(*client).kind, NoticeKind::kDrain);
  post("/v1/regions/" + std::to_string(id) + "/resume", Json::object());
  EXPECT_EQ(next(*client).kind, NoticeKind::kResume);
  giveBack(*client, given);
  EXPECT_EQ(stateOf(id), "attached") << "it stands ready for the next program";
}

TEST_F(AgentProcesses, ADrainOfWhatNobodyHasNeedsNobody) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  post("/v1/regions/" + std::to_string(id) + "/drain", Json::object());
  await([&] { return stateOf(id) == "free"; });
}

TEST_F(AgentProcesses, WhatIsTakenByForceIsSaidToBeLost) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  const Given given = ask(*client, 0);
  post("/v1/regions/" + std::to_string(id) + "/release", {{"force", true}});
  const AgentNotice gone = next(*client);
  EXPECT_EQ(gone.kind, NoticeKind::kGone);
  EXPECT_EQ(gone.region, id);
  EXPECT_EQ(gone.size, Bytes());
  EXPECT_EQ(gone.error, ErrorCode::kLost);
  ASSERT_TRUE(client->reclaim(3, id, given.epoch));
  EXPECT_EQ(next(*client).error, ErrorCode::kLost);
}

TEST_F(AgentProcesses, TheEndOfARegionThatIsMadeSmallerIsLost) {
  startAgent();
  const uint64_t id = assign(8 * kMiB);
  const auto client = connect();
  (void)ask(*client, 0);
  post("/v1/regions/" + std::to_string(id) + "/resize", {{"size_bytes", 2 * kMiB}});
  const AgentNotice gone = next(*client);
  EXPECT_EQ(gone.kind, NoticeKind::kGone);
  EXPECT_EQ(gone.size, Bytes(2 * kMiB));
}

TEST_F(AgentProcesses, AManagerThatWasStoppedLongerThanALeaseTakesNothing) {
  startAgent({"--lease", "1"});
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  const auto uptime = [this] { return get("/v1/status").value("uptime_ms", uint64_t{0}); };
  const uint64_t before = uptime();
  const uint64_t since = get("/v1/events").value("index", uint64_t{0});
  manager_->stop();
  const MonotonicClock clock;
  const Nanoseconds start = clock.now();
  while (clock.now() - start < Nanoseconds(4'000'000'000)) poll(nullptr, 0, 100);
  manager_->signal(SIGCONT);
  // It has ticked some times when so much has passed.
  while (uptime() < before + 8'000) poll(nullptr, 0, 100);
  EXPECT_EQ(stateOf(id), "attached");
  EXPECT_EQ(get("/v1/hosts/" + std::string(kHost))["state"], "active");
  EXPECT_EQ(get("/v1/events?since=" + std::to_string(since))["items"].size(), 0u);
  given.at(0) = 1;
}

TEST_F(AgentProcesses, AnAgentThatWasKilledKnowsWhoHasWhat) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given standing = ask(*client, 0);
  Given on_demand = ask(*client, 4 * kMiB);
  standing.at(1) = on_demand.at(1) = 77;
  killNow(agent_);
  startAgent();
  {
    // The holder has not come back yet: nobody else gets its bytes.
    const auto other = connect();
    askInVain(*other, 0, ErrorCode::kNoSpace);
    ASSERT_TRUE(other->reclaim(1, id, Epoch(99)));
    EXPECT_EQ(next(*other).error, ErrorCode::kLost);
  }
  reconnect(*client);
  reclaim(*client, standing);
  reclaim(*client, on_demand);
  EXPECT_EQ(standing.at(1), 77);
  EXPECT_EQ(on_demand.at(1), 77);
  giveBack(*client, on_demand);
  await([&] { return stateOf(on_demand.id) == "free"; });
  EXPECT_EQ(stateOf(id), "attached");
}

// An agent was killed when its journal had a region, and the program had not been told.
TEST_F(AgentProcesses, WhatAProgramWasNeverToldOfIsNotKeptForIt) {
  startAgent();
  const uint64_t first = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  ASSERT_EQ(given.id, first);
  given.at(5) = 55;
  const uint64_t second = assign(4 * kMiB);
  awaitStatus(*client, "\"regions\":2");
  killNow(agent_);
  {
    const auto journal = Journal::open(socket_ + ".journal");
    ASSERT_TRUE(journal) << journal.error().text();
    const auto [process, name] = *(*journal)->records().at(first).holders.begin();
    ASSERT_NE(name, kNoName);
    const Epoch epoch(get("/v1/regions/" + std::to_string(second))["epoch"].get<uint64_t>());
    ASSERT_TRUE((*journal)->held(second, epoch, getuid(), process, name));
  }
  startAgent();
  // Another client of the same process knows nothing of either.
  const auto other = connect();
  ASSERT_TRUE(other->reclaimedAll());
  awaitStatus(*other, "\"held\":2");
  reconnect(*client);
  reclaim(*client, given);
  ASSERT_TRUE(client->reclaimedAll());
  awaitStatus(*client, "\"held\":1,");
  EXPECT_EQ(given.at(5), 55);
  EXPECT_EQ(ask(*other, 0).id, second);
}

TEST_F(AgentProcesses, AProgramThatDiesWhileTheAgentIsDownGivesBackAllTheSame) {
  startAgent();
  const uint64_t standing = assign(4 * kMiB);
  auto other = std::make_unique<OtherProgram>([&] {
    auto client = connect();
    const Given given = ask(*client, 0);
    memset(given.memory.data(), 0x5a, given.size.value());
    (void)ask(*client, 4 * kMiB);
    return client;
  });
  ASSERT_TRUE(other->done());
  killNow(agent_);
  other.reset();
  startAgent();
  await([&] { return get("/v1/regions")["items"].size() == 1; });  // the one on demand is back
  expectZeros(standing);
}

TEST_F(AgentProcesses, NeitherNoticesThatTheManagerWasKilled) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  given.at(9) = 9;
  killNow(manager_);
  askInVain(*client, 4 * kMiB, ErrorCode::kUnreachable);
  // Even an agent that is started now lets its programs go on.
  killNow(agent_);
  startAgent();
  reconnect(*client);
  reclaim(*client, given);
  startManager();
  await([&] { return get("/v1/hosts/" + std::string(kHost))["regions"] == 1; });
  awaitStatus(*client, "\"manager\":\"member\"");
  EXPECT_NE(ask(*client, 4 * kMiB).id, id);
  EXPECT_EQ(given.at(9), 9);
  giveBack(*client, given);
}

TEST_F(AgentProcesses, AnAgentThatWasAwayForItsLeaseHasLostItsRegions) {
  startAgent({"--lease", "4"});
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  const Given given = ask(*client, 0);
  agent_->stop();
  await([&] { return stateOf(id) == "free"; });
  EXPECT_EQ(get("/v1/hosts/" + std::string(kHost))["state"], "fenced");
  agent_->signal(SIGCONT);
  const AgentNotice gone = next(*client);
  EXPECT_EQ(gone.kind, NoticeKind::kGone);
  EXPECT_EQ(gone.region, given.id);
  EXPECT_EQ(gone.size, Bytes());
  // An operator lets the host in again; the agent notices by itself.
  post("/v1/hosts/" + std::string(kHost) + "/resume", Json::object());
  awaitStatus(*client, "\"manager\":\"member\"");
  EXPECT_NE(ask(*client, 4 * kMiB).id, id);
}

TEST_F(AgentProcesses, AChildThatReclaimsSharesTheRegion) {
  startAgent();
  awaitHost();
  const auto client = connect();
  Given given = ask(*client, 4 * kMiB);
  {
    OtherProgram child([&] {
      auto own = connect();
      reclaim(*own, given);
      return own;
    });
    ASSERT_TRUE(child.done());
    giveBack(*client, given);
    ASSERT_TRUE(client->askStatus(8));
    EXPECT_THAT(next(*client).text, HasSubstr("\"held\":1"));
    EXPECT_EQ(stateOf(given.id), "attached");
  }
  await([&] { return stateOf(given.id) == "free"; });
}

TEST_F(AgentProcesses, AProgramThatIsCutOffKeepsItsBytesUntilItEnds) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  {
    OtherProgram other([&] {
      auto client = connect();
      (void)ask(*client, 0);
      char nonsense[3] = {};
      EXPECT_EQ(send(client->fd(), nonsense, sizeof nonsense, MSG_NOSIGNAL), 3);
      const AgentNotice refused = next(*client);
      EXPECT_EQ(refused.error, ErrorCode::kCorrupt) << refused.text;
      AgentNotice notice;
      EXPECT_FALSE(client->wait(&notice, kPatience));
      return client;
    });
    ASSERT_TRUE(other.done());
    askInVain(*connect(), 0, ErrorCode::kNoSpace);
  }
  const auto client = connect();
  awaitStatus(*client, "\"held\":0");
  EXPECT_EQ(ask(*client, 0).id, id);
}

TEST_F(AgentProcesses, AnotherUserGetsNothing) {
  if (geteuid() != 0) return;  // local_server_test has this for those who cannot change their user
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  // The folder is not what keeps others out.
  std::filesystem::permissions(scratch_ / "", std::filesystem::perms(0755));
  OtherProgram other([&] {
    EXPECT_EQ(setgid(65'534), 0);
    EXPECT_EQ(setuid(65'534), 0);
    auto client = AgentClient::connect(socket_.c_str());
    EXPECT_TRUE(client) << client.error().text();
    if (!client) return std::unique_ptr<AgentClient>();
    EXPECT_EQ(next(**client).error, ErrorCode::kPermission);
    return std::move(*client);
  });
  EXPECT_TRUE(other.done());
  const auto client = connect();
  EXPECT_EQ(ask(*client, 0).id, id);
}

TEST_F(AgentProcesses, ThatAMemoryServerDiedIsNoticedThoughNobodyAsksItForAnything) {
  lend("64M");
  startAgent();
  awaitHost();
  const auto id =
      post("/v1/regions", {{"host", kHost}, {"size_bytes", 4 * kMiB}, {"class", "remote"}})
          .value("id", uint64_t{0});
  killNow(memserver_);
  startMemserver("64M", control_);
  await([&] { return stateOf(id) == "lost"; });
}

TEST_F(AgentProcesses, ACertificateOfTheHostIsEnoughElsewhere) {
  serveOverTls();
  startAgent(optionsOf(targetAs(kHost)));
  awaitHost();
  const auto client = connect();
  EXPECT_EQ(ask(*client, 4 * kMiB).size, Bytes(4 * kMiB));
}

TEST_F(AgentProcesses, ItSaysHowItIs) {
  startAgent();
  assign(4 * kMiB);
  const auto client = connect();
  (void)ask(*client, 0);
  awaitStatus(*client, "\"manager\":\"member\"");
  Program status({"agent", "--status", "--json", "--socket", socket_});
  const Json said = Json::parse(status.line());
  EXPECT_EQ(status.wait(), 0);
  EXPECT_EQ(said["health"], "ok");
  EXPECT_EQ(said["manager"], "member");
  EXPECT_EQ(said["held_bytes"], 4 * kMiB);
  agent_->signal(SIGTERM);
  EXPECT_EQ(agent_->wait(), 0);
  agent_.reset();
  Program away({"agent", "--status", "--socket", socket_});
  EXPECT_THAT(away.errors(), HasSubstr("fabricmgr agent"));
  EXPECT_EQ(away.wait(), 5);
}

TEST_F(AgentProcesses, BadUsageIsExplained) {
  Program bad_name({"agent", "--host", "a/b", "--socket", socket_, "--journal", scratch_ / "j"});
  EXPECT_THAT(bad_name.errors(), HasSubstr("a/b"));
  EXPECT_EQ(bad_name.wait(), 2);
  Program bad_user({"agent", "--host", "a", "--allow-user", "no such user"});
  EXPECT_THAT(bad_user.errors(), HasSubstr("no such user"));
  EXPECT_EQ(bad_user.wait(), 2);
  Program bad_place({"agent", "--host", "a", "--fabric", "ftp://x", "--socket", socket_,
                     "--journal", scratch_ / "j"});
  EXPECT_THAT(bad_place.errors(), HasSubstr("unix:PATH"));
  EXPECT_EQ(bad_place.wait(), 2);
  startAgent();
  Program second(
      {"agent", "--host", "node1", "--socket", socket_, "--journal", socket_ + ".journal"});
  EXPECT_THAT(second.errors(), HasSubstr("another agent"));
  EXPECT_EQ(second.wait(), 6);
}

}  // namespace
}  // namespace tidepool::agent
