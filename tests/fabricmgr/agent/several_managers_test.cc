// SPDX-License-Identifier: Apache-2.0
// Clients that know several managers: which of them is asked when some are dead, stand by, are
// another fabric's, or die in the middle, and that no lease and no region is lost meanwhile.
#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "fabricmgr/agent/manager_link.h"
#include "fabricmgr/api/problem.h"
#include "tests/fabricmgr/agent/processes_fixture.h"

namespace tidepool::agent {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Answers everything, and remembers the idempotency keys; or stands by.
class Answering : public api::HttpHandler {
 public:
  explicit Answering(const std::string& path) {
    api::ServerOptions options;
    options.unix_socket = api::UnixListener{path, 0666, {{}, api::Role::kAdmin}};
    options.rate = {0, 0};
    server_ = std::move(*api::HttpServer::start(options, *this));
  }
  ~Answering() override { server_->stop(); }
  api::Lane laneOf(const api::Request&) const override { return api::Lane::kSlow; }
  void serve(const std::shared_ptr<api::Exchange>& exchange) override {
    const std::string* key = exchange->request.header("idempotency-key");
    {
      const MutexLock lock(mutex_);
      keys_.push_back(key == nullptr ? "" : *key);
      paths_.push_back(exchange->request.path);
    }
    exchange->reply(stands_by ? api::standingBy("another one is in charge")
                              : api::Response{200, "application/json", {}, "{}\n"});
  }
  api::Response refuse(const api::Refused& refused) override { return api::problem(refused.why); }
  void strangerRefused(const std::string&, const std::string&) override {}
  std::vector<std::string> keys() {
    const MutexLock lock(mutex_);
    return keys_;
  }

  std::vector<std::string> paths() {
    const MutexLock lock(mutex_);
    return paths_;
  }

  uint64_t connections() const { return server_->connections(); }

  std::atomic<bool> stands_by{false};

 private:
  Mutex mutex_;
  std::vector<std::string> paths_ TP_GUARDED_BY(mutex_);
  std::vector<std::string> keys_ TP_GUARDED_BY(mutex_);
  std::unique_ptr<api::HttpServer> server_;
};

int listenAt(const std::string& path) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  listen(listener, 16);
  return listener;
}

/// Takes a request, and hangs up.
class HangingUp {
 public:
  explicit HangingUp(const std::string& path) : listener_(listenAt(path)) {
    thread_ = std::thread([this] {
      for (;;) {
        const UniqueFd one(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!one.valid()) return;
        char bytes[65536];
        const ssize_t got = read(one.get(), bytes, sizeof bytes);
        const std::string text(bytes, static_cast<size_t>(std::max<ssize_t>(got, 0)));
        const size_t at = text.find("Idempotency-Key: ");
        keys.push_back(text.substr(at + 17, text.find("\r\n", at) - at - 17));
      }
    });
  }
  ~HangingUp() { join(); }
  void join() {
    if (!thread_.joinable()) return;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::vector<std::string> keys;  // after join()

 private:
  const UniqueFd listener_;
  std::thread thread_;
};

client::Target targetOf(const std::string& addresses) {
  client::Target target;
  target.address = addresses;
  return target;
}

TEST(SeveralManagers, TheOneThatAnsweredIsAskedUntilItIsOfNoUse) {
  // Against a model, in random histories of who stands by; the second is dead always.
  const api::Scratch scratch;
  std::vector<std::unique_ptr<Answering>> servers(4);
  std::string addresses;
  for (size_t i = 0; i < servers.size(); ++i) {
    const std::string path = scratch / ("m" + std::to_string(i));
    addresses += (i == 0 ? "unix:" : ",unix:") + path;
    if (i != 1) servers[i] = std::make_unique<Answering>(path);
  }
  client::HttpClient client(targetOf(addresses));
  std::mt19937 random(3);
  size_t expected = 0;
  for (int step = 0; step < 200; ++step) {
    const size_t changed = random() % servers.size();
    if (servers[changed]) servers[changed]->stands_by = random() % 2 == 0;
    const auto good = [&](size_t i) { return servers[i] && !servers[i]->stands_by; };
    size_t tries = 0;
    for (; tries < servers.size() && !good(expected); ++tries) {
      expected = (expected + 1) % servers.size();
    }
    const size_t before = servers[expected] ? servers[expected]->keys().size() : 0;
    const client::Reply reply = client.post("/v1/any", "{}", {});
    if (tries < servers.size()) {
      ASSERT_EQ(reply.status, 200) << reply.error;
      ASSERT_EQ(servers[expected]->keys().size(), before + 1);
    } else {
      ASSERT_EQ(reply.status, 0);
      ASSERT_THAT(reply.error, AllOf(HasSubstr("m0: it stands by; "),
                                     HasSubstr("m1: cannot connect to it: No such file")));
    }
  }
}

TEST(SeveralManagers, AChangeThatMayHaveBeenMadeGoesToTheNextWithItsKey) {
  const api::Scratch scratch;
  HangingUp first(scratch / "a");
  Answering second(scratch / "b");
  client::HttpClient client(targetOf("unix:" + (scratch / "a") + ",unix:" + (scratch / "b")));
  EXPECT_EQ(client.post("/v1/any", "{}", {}).status, 200);
  first.join();
  const auto keys = second.keys();
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_FALSE(keys[0].empty());
  EXPECT_EQ(first.keys, std::vector(2, keys[0])) << "once more, then of the next";
}

TEST(SeveralManagers, WhatOneClientFindsOutTheOthersKnow) {
  const api::Scratch scratch;
  Answering standing(scratch / "a"), good(scratch / "b");
  standing.stands_by = true;
  client::Target target = targetOf("unix:" + (scratch / "a") + ",unix:" + (scratch / "b"));
  target.place = std::make_shared<std::atomic<size_t>>(0);
  client::HttpClient finds(target), follows(target);
  target.stays = true;
  client::HttpClient stays(target);
  EXPECT_EQ(stays.get("/v1/any").status, 503) << "it leaves that to others";
  EXPECT_EQ(finds.get("/v1/any").status, 200);
  EXPECT_EQ(follows.get("/v1/any").status, 200);
  EXPECT_EQ(stays.get("/v1/any").status, 200);
  EXPECT_EQ(standing.paths().size(), 2u) << "by `stays` and `finds`";
  good.stands_by = true;
  standing.stands_by = false;
  EXPECT_EQ(follows.get("/v1/any").status, 200);
  EXPECT_EQ(finds.get("/v1/any").status, 200);
  EXPECT_EQ(good.paths().size(), 4u) << "once more, by `follows`";
}

TEST(SeveralManagers, AConnectionToEachIsThereBeforeItIsNeeded) {
  const api::Scratch scratch;
  Answering first(scratch / "a"), second(scratch / "b"), third(scratch / "d");
  second.stands_by = third.stands_by = true;
  std::string addresses;
  for (const char* name : {"a", "b", "c", "d"}) {  // nobody is at "c"
    addresses += (addresses.empty() ? "unix:" : ",unix:") + (scratch / name);
  }
  client::HttpClient client(targetOf(addresses));
  EXPECT_EQ(client.get("/v1/any").status, 200);
  for (int i = 0; i < 2; ++i) client.keepOthers("/v1/other", 600'000);
  EXPECT_THAT(first.paths(), ::testing::ElementsAre("/v1/any"));
  EXPECT_THAT(third.paths(), ::testing::ElementsAre("/v1/other", "/v1/other"));
  EXPECT_EQ(client.get("/v1/any").status, 200) << "of the one that was asked before";
  EXPECT_EQ(first.paths().size(), 2u);
  first.stands_by = true;
  third.stands_by = false;
  EXPECT_EQ(client.get("/v1/any").status, 200);
  EXPECT_EQ(third.paths().size(), 3u);
  for (const Answering* one : {&first, &second, &third}) EXPECT_EQ(one->connections(), 1u);
}

TEST(SeveralManagers, OneThatIsSilentIsNotWaitedForWhenConnectionsAreMade) {
  const api::Scratch scratch;
  Answering first(scratch / "a");
  const UniqueFd silent(listenAt(scratch / "b"));
  client::HttpClient client(targetOf("unix:" + (scratch / "a") + ",unix:" + (scratch / "b")));
  client.keepOthers("/v1/other", 50);
  EXPECT_EQ(client.get("/v1/any").status, 200) << "as long as before";
  EXPECT_THAT(first.paths(), ::testing::ElementsAre("/v1/any"));
}

TEST(SeveralManagers, AListTakesTheHeartbeatsConnection) {
  const api::Scratch scratch;
  Answering manager(scratch / "a");
  EventLoop loop;
  FabricPin pin({}, [](const Journal::Fabric&) {});
  ManagerLink link(loop, pin, targetOf("unix:" + (scratch / "a")));
  const auto ask = [](Asker& asker) { return asker.get("/v1/any").has_value(); };
  link.run(Lane::kHeart, ask, [&](bool) {
    link.run(Lane::kList, ask, [&](bool answered) {
      EXPECT_TRUE(answered);
      loop.stop();
    });
  });
  loop.run();
  EXPECT_EQ(manager.paths().size(), 2u);
  EXPECT_EQ(manager.connections(), 1u);
}

TEST(SeveralManagers, OneAloneThatStandsBySaysSoItself) {
  const api::Scratch scratch;
  Answering only(scratch / "a");
  only.stands_by = true;
  client::HttpClient client(targetOf("unix:" + (scratch / "a")));
  const client::Reply reply = client.get("/v1/any");
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("another one is in charge"));
  for (const char* bad :
       {"", "unix:", "unix:/a,", ",unix:/a", "unix:/a,http://b", "unix:/a, unix:/b"}) {
    EXPECT_THROW(client::HttpClient(targetOf(bad)), std::invalid_argument) << bad;
  }
}

class AgentOfSeveral : public AgentProcesses {
 protected:
  /// Of the same store, at another socket.
  void startManagerElsewhere() {
    std::ifstream from(scratch_ / "fabric.toml");
    std::string text{std::istreambuf_iterator<char>(from), {}};
    const std::string path = "path = \"" + manager_socket_;
    text.replace(text.find(path), path.size(), path + "2");
    std::ofstream(scratch_ / "other.toml") << text;
    manager_socket_ += "2";
    startManager("other.toml");
  }
  /// No event tells of one.
  void awaitWatcher() {
    while (get("/v1/status")["watchers"] == 0) poll(nullptr, 0, 5);
  }
  void knowsAlso(const std::string& first) { fabric_ = "unix:" + first + "," + fabric_; }
};

TEST_F(AgentOfSeveral, DeadOnesAndThoseThatStandByArePassedOver) {
  Answering standing(scratch_ / "standing");
  standing.stands_by = true;
  knowsAlso(scratch_ / "standing");
  knowsAlso(scratch_ / "nobody");
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  EXPECT_EQ(ask(*connect(), 0).id, id);
  EXPECT_FALSE(standing.keys().empty());
}

TEST_F(AgentOfSeveral, OneOfAnotherFabricIsPassedOver) {
  startAgent();
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  killNow(agent_);
  // Every answer of it is good, and says of no fabric.
  Answering stranger(scratch_ / "stranger");
  knowsAlso(scratch_ / "stranger");
  startAgent();
  reconnect(*client);
  reclaim(*client, given);
  awaitStatus(*client, "\"manager\":\"member\"");
  EXPECT_FALSE(stranger.keys().empty());
  EXPECT_EQ(stateOf(id), "attached");
}

TEST_F(AgentOfSeveral, OneThatDiesIsFollowedByTheNextAndNothingIsLost) {
  fabric_ += ",unix:" + manager_socket_ + "2";
  startAgent({"--lease", "5"});
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  given.at(9) = 9;
  // Between two heartbeats, and in the middle of a watch.
  killNow(manager_);
  startManagerElsewhere();
  await([&] { return get("/v1/hosts/" + std::string(kHost))["lease_left_ms"] > 0; });
  const uint64_t next = post("/v1/regions", {{"host", kHost}, {"size_bytes", 2 * kMiB}})["id"];
  awaitStatus(*client, "\"regions\":2");
  EXPECT_EQ(ask(*client, 2 * kMiB).id, next);
  awaitStatus(*client, "\"manager\":\"member\"");
  EXPECT_EQ(stateOf(id), "attached");
  EXPECT_EQ(given.at(9), 9);
  giveBack(*client, given);
}

bool isHeartbeat(const std::string& path) { return path.ends_with("/heartbeat"); }

size_t heartbeatsAmong(const std::vector<std::string>& paths) {
  return static_cast<size_t>(std::count_if(paths.begin(), paths.end(), isHeartbeat));
}

TEST_F(AgentOfSeveral, WhoStandsByIsFoundOverAConnectionThatIsThere) {
  Answering standing(scratch_ / "standing");
  standing.stands_by = true;
  fabric_ += ",unix:" + (scratch_ / "standing");
  startAgent({"--lease", "5"});
  while (standing.paths().empty()) poll(nullptr, 0, 5);
  EXPECT_EQ(heartbeatsAmong(standing.paths()), 0u);
  killNow(manager_);
  while (heartbeatsAmong(standing.paths()) < 2) poll(nullptr, 0, 5);
  EXPECT_EQ(standing.connections(), 1u);
}

/// Thousands of them lose it in the same moment.
TEST_F(AgentOfSeveral, WhoHasLostItsManagerLooksForTheNextByHeartbeatsAlone) {
  Answering standing(scratch_ / "standing");
  standing.stands_by = true;
  fabric_ += ",unix:" + (scratch_ / "standing");
  startAgent({"--lease", "5"});
  const uint64_t id = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  awaitWatcher();
  killNow(manager_);
  while (heartbeatsAmong(standing.paths()) <= 3) poll(nullptr, 0, 5);
  EXPECT_THAT(standing.paths(),
              ::testing::Each(AnyOf(HasSubstr("/heartbeat"), "/v1/hosts/" + std::string(kHost))));
  startManager("fabric.toml");
  awaitStatus(*client, "\"manager\":\"member\"");
  awaitWatcher();
  const uint64_t next = post("/v1/regions", {{"host", kHost}, {"size_bytes", 2 * kMiB}})["id"];
  awaitStatus(*client, "\"regions\":2");
  EXPECT_EQ(ask(*client, 2 * kMiB).id, next);
  EXPECT_EQ(stateOf(id), "attached");
  giveBack(*client, given);
}

}  // namespace
}  // namespace tidepool::agent
