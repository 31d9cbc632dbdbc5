// SPDX-License-Identifier: Apache-2.0
// A fabric manager, an agent and programs as processes of their own, in a folder that goes with the
// test. Nothing waits for a time: what is waited for is an event of the manager's or a notice of
// the agent's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fabricmgr/client/http_client.h"
#include "runtime/base/mapping.h"
#include "runtime/transport/agent_client.h"
#include "tests/fabricmgr/api/server_fixture.h"
#include "tests/fabricmgr/program.h"

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

class AgentProcesses : public ::testing::Test {
 protected:
  static constexpr uint64_t kPoolBytes = 64 * kMiB;
  static constexpr const char* kHost = "node1";

  void SetUp() override {
    std::ofstream(scratch_ / "key") << "a key of more than sixteen bytes\n";
    std::filesystem::permissions(
        scratch_ / "key", std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::ofstream(scratch_ / "fabric.toml") << "state = \"" << scratch_ / "fabric.db"
                                            << "\"\nmemserver_key = \"" << scratch_ / "key"
                                            << "\"\n[unix]\npath = \"" << scratch_ / "sock"
                                            << "\"\n[limits]\nrequests_per_second = 1000000\n"
                                            << "burst = 1000000\n";
    startManager();
    std::ofstream(scratch_ / "pool0").close();
    std::filesystem::resize_file(scratch_ / "pool0", kPoolBytes);
    post("/v1/pools", {{"name", "cxl"}, {"class", "cxl"}});
    post("/v1/devices", {{"name", "dev0"}, {"pool", "cxl"}, {"address", scratch_ / "pool0"}});
  }

  void startManager() {
    manager_ = std::make_unique<Program>(
        std::vector<std::string>{"serve", "--config", scratch_ / "fabric.toml"});
    ASSERT_EQ(manager_->line().substr(0, 9), "listening");
  }
  void startAgent(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "agent",    "--host", kHost, "--socket", socket_, "--journal", scratch_ / "journal",
        "--fabric", fabric_};
    words.insert(words.end(), more.begin(), more.end());
    agent_ = std::make_unique<Program>(words);
    ASSERT_EQ(agent_->line(), "listening on unix:" + socket_);
  }
  static void killNow(std::unique_ptr<Program>& program) {
    program->signal(SIGKILL);
    EXPECT_EQ(program->wait(), 1000 + SIGKILL);
    program.reset();
  }

  // --- The manager, as an administrator sees it.
  Json get(const std::string& path) {
    client::HttpClient client({"unix:" + (scratch_ / "sock"), "", "", "", 60, {}, nullptr});
    const client::Reply reply = client.get(path);
    EXPECT_EQ(reply.status, 200) << path << " " << reply.error << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  Json post(const std::string& path, const Json& body) {
    client::HttpClient client({"unix:" + (scratch_ / "sock"), "", "", "", 60, {}, nullptr});
    const client::Reply reply = client.post(path, body.dump(), {});
    EXPECT_EQ(reply.status / 100, 2) << path << " " << reply.error << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  /// Returns when `is` holds, which is looked at after each event.
  void await(const std::function<bool()>& is) {
    uint64_t since = get("/v1/status").value("index", uint64_t{0});
    for (int i = 0; i < 200; ++i) {
      if (is()) return;
      since =
          get("/v1/events?wait_ms=2000&since=" + std::to_string(since)).value("index", uint64_t{0});
    }
    FAIL() << "it did not come true: " << get("/v1/regions").dump() << get("/v1/hosts").dump();
  }
  void awaitHost() {
    await([&] { return !get("/v1/hosts")["items"].empty(); });
  }
  uint64_t assign(uint64_t bytes) {
    awaitHost();
    return post("/v1/regions", {{"host", kHost}, {"size_bytes", bytes}}).value("id", uint64_t{0});
  }
  std::string stateOf(uint64_t region) {
    const Json list = get("/v1/regions");
    for (const Json& one : list["items"]) {
      if (one["id"] == region) return one["state"].get<std::string>();
    }
    return "free";
  }

  // --- Programs.
  std::unique_ptr<AgentClient> connect() {
    auto client = AgentClient::connect(socket_.c_str());
    EXPECT_TRUE(client) << client.error().text();
    if (!client) return nullptr;
    EXPECT_EQ(next(**client).kind, NoticeKind::kWelcome);
    return std::move(*client);
  }
  static AgentNotice next(AgentClient& client) {
    AgentNotice notice;
    const Status got = client.wait(&notice, kPatience);
    EXPECT_TRUE(got) << got.error().text();
    return notice;
  }
  static Given take(AgentNotice& notice) {
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
  static Given ask(AgentClient& client, uint64_t size, Want want = Want::kAny) {
    EXPECT_TRUE(client.ask(1, Bytes(size), want));
    AgentNotice notice = next(client);
    return take(notice);
  }
  static std::string askInVain(AgentClient& client, uint64_t size, ErrorCode expected) {
    EXPECT_TRUE(client.ask(1, Bytes(size), Want::kAny));
    const AgentNotice notice = next(client);
    EXPECT_EQ(notice.kind, NoticeKind::kRefused);
    EXPECT_EQ(notice.error, expected) << notice.text;
    return notice.text;
  }
  /// Until the agent says of itself what it should.
  static void awaitStatus(AgentClient& client, const std::string& expected) {
    for (std::string said; said.find(expected) == std::string::npos;) {
      ASSERT_TRUE(client.askStatus(9));
      said = next(client).text;
    }
  }
  static void giveBack(AgentClient& client, const Given& given) {
    EXPECT_TRUE(client.giveBack(2, given.id, given.epoch));
    EXPECT_EQ(next(client).kind, NoticeKind::kReturned);
  }
  /// The next program gets this region, and finds nothing in it.
  void expectZeros(uint64_t standing) {
    const auto client = connect();
    Given given = ask(*client, 0);
    EXPECT_EQ(given.id, standing);
    for (uint64_t at = 0; at < given.size.value(); ++at) ASSERT_EQ(given.at(at), 0) << at;
  }
  /// Until the connection has broken and there is a new one, to an agent that listens again.
  static void reconnect(AgentClient& client) {
    AgentNotice notice;
    const Status broken = client.wait(&notice, kPatience);
    EXPECT_FALSE(broken);
    EXPECT_EQ(broken.error().code(), ErrorCode::kUnreachable) << broken.error().text();
    const Status again = client.reconnect();
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_EQ(next(client).kind, NoticeKind::kWelcome);
  }

  const api::Scratch scratch_;
  const std::string socket_ = scratch_ / "agent.sock";
  std::string fabric_ = "unix:" + (scratch_ / "sock");  // for agents
  std::unique_ptr<Program> manager_;
  std::unique_ptr<Program> agent_;
};

/// Another program: a forked process that does its work, says so, and then waits to be killed, with
/// the connection that the work has returned.
class OtherProgram {
 public:
  explicit OtherProgram(const std::function<std::unique_ptr<AgentClient>()>& work) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    done_ = UniqueFd(ends[0]);
    pid_ = fork();
    if (pid_ == 0) {
      const auto connection = work();
      const char verdict = ::testing::Test::HasFailure() ? 'n' : 'y';
      (void)!write(ends[1], &verdict, 1);
      for (;;) pause();
    }
    close(ends[1]);
  }
  ~OtherProgram() { kill(); }
  /// Whether its work was done well; waits for it.
  bool done() {
    char verdict = 'n';
    return read(done_.get(), &verdict, 1) == 1 && verdict == 'y';
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd done_;
};

}  // namespace tidepool::agent
