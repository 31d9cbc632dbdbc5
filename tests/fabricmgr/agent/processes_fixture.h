// SPDX-License-Identifier: Apache-2.0
// A fabric manager, an agent and programs as processes of their own, in a folder that goes with the
// test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "fabricmgr/ca/authority.h"
#include "fabricmgr/client/http_client.h"
#include "runtime/transport/client.h"
#include "tests/fabricmgr/agent/program_side.h"
#include "tests/fabricmgr/api/server_fixture.h"
#include "tests/fabricmgr/program.h"

namespace tidepool::agent {

class AgentProcesses : public ::testing::Test {
 protected:
  static constexpr uint64_t kPoolBytes = 64 * kMiB;
  static constexpr const char* kHost = "node1";

  void SetUp() override {
    auto authority = ca::Authority::init(scratch_ / "ca", 3600);
    ASSERT_TRUE(authority) << authority.error().text();
    authority_ = std::make_unique<ca::Authority>(std::move(*authority));
    std::ofstream(scratch_ / "fabric.toml")
        << "state = \"" << scratch_ / "fabric.db"
        << "\"\n[unix]\npath = \"" << scratch_ / "sock"
        << "\"\n[limits]\nrequests_per_second = 1000000\nburst = 1000000\n"
        << section("memservers", issue({"manager", "main", {}, 3600}));
    initStore();
    startManager();
    std::ofstream(scratch_ / "pool0").close();
    std::filesystem::resize_file(scratch_ / "pool0", kPoolBytes);
    post("/v1/pools", {{"name", "cxl"}, {"class", "cxl"}});
    post("/v1/devices", {{"name", "dev0"}, {"pool", "cxl"}, {"address", scratch_ / "pool0"}});
  }

  void initStore() {
    Program init({"init", "--config", scratch_ / "fabric.toml"});
    ASSERT_EQ(init.wait(), 0) << init.errors();
  }
  void startManager(const std::string& config = "fabric.toml") {
    manager_ =
        std::make_unique<Program>(std::vector<std::string>{"serve", "--config", scratch_ / config});
    ASSERT_EQ(manager_->line().substr(0, 9), "listening");
  }
  void startAgent(const std::vector<std::string>& more = {}) {
    agent_ = agentOf(kHost, socket_, more);
  }
  std::unique_ptr<Program> agentOf(const std::string& host, const std::string& socket,
                                   const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        "agent",    "--host", host, "--socket", socket, "--journal", socket + ".journal",
        "--fabric", fabric_};
    words.insert(words.end(), more.begin(), more.end());
    auto agent = std::make_unique<Program>(words);
    EXPECT_EQ(agent->line(), "listening on unix:" + socket);
    return agent;
  }
  /// A memory server, and its pool and device.
  void lend(const std::string& size) {
    startMemserver(size, "127.0.0.1:0");
    post("/v1/pools", {{"name", "far"}, {"class", "remote"}});
    post("/v1/devices", {{"name", "mem0"}, {"pool", "far"}, {"address", control_}});
  }
  /// At `control`, which is then control_.
  void startMemserver(const std::string& size, const std::string& control) {
    if (lent_.key.empty()) lent_ = issue({"memserver", "mem0", {}, 3600});
    memserver_ = std::make_unique<Program>(std::vector<std::string>{
        "memserver", "--listen", "127.0.0.1:0", "--size", size, "--json", "--control", control,
        "--cert", lent_.certificate, "--key", lent_.key, "--ca", authority_->certificatePath()});
    const Json said = Json::parse(memserver_->line());
    control_ = "127.0.0.1:" + std::to_string(said["control_port"].get<int>());
  }
  /// From here on the manager is asked over TLS by agents, which show a certificate.
  void serveOverTls() {
    killNow(manager_);
    std::ofstream(scratch_ / "fabric.toml", std::ios::app)
        << section("tcp", issue({"server", "manager", {"127.0.0.1"}, 3600}))
        << "listen = \"127.0.0.1:0\"\n";
    startManager();
    const std::string tcp = manager_->line();
    fabric_ = tcp.substr(tcp.rfind(' ') + 1);
  }
  ca::Issued issue(const ca::Issue& what) {
    const auto issued = authority_->issue(what, scratch_ / "ca");
    EXPECT_TRUE(issued) << issued.error().text();
    return issued ? *issued : ca::Issued();
  }
  /// Of the configuration.
  std::string section(const std::string& name, const ca::Issued& issued) {
    return "[" + name + "]\ncertificate = \"" + issued.certificate + "\"\nkey = \"" + issued.key +
           "\"\nca = \"" + authority_->certificatePath() + "\"\n";
  }
  client::Target targetAs(const std::string& host) {
    const ca::Issued issued = issue({"host", host, {}, 3600});
    return {fabric_, authority_->certificatePath(), issued.certificate, issued.key, 60, {},
            nullptr};
  }
  static std::vector<std::string> optionsOf(const client::Target& target) {
    return {"--ca", target.ca, "--cert", target.certificate, "--key", target.key};
  }
  static void killNow(std::unique_ptr<Program>& program) {
    program->signal(SIGKILL);
    EXPECT_EQ(program->wait(), 1000 + SIGKILL);
    program.reset();
  }

  // --- The manager, as an administrator sees it.
  Json get(const std::string& path) {
    client::HttpClient client({"unix:" + manager_socket_, "", "", "", 60, {}, nullptr});
    const client::Reply reply = client.get(path);
    EXPECT_EQ(reply.status, 200) << path << " " << reply.error << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  Json post(const std::string& path, const Json& body) {
    client::HttpClient client({"unix:" + manager_socket_, "", "", "", 60, {}, nullptr});
    const client::Reply reply = client.post(path, body.dump(), {});
    EXPECT_EQ(reply.status / 100, 2) << path << " " << reply.error << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  void await(const std::function<bool()>& is) {
    awaitChange([this](const std::string& path) { return get(path); }, is);
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
  std::unique_ptr<AgentClient> connect() { return connectTo(socket_); }
  static std::unique_ptr<AgentClient> connectTo(const std::string& socket) {
    auto client = AgentClient::connect(socket.c_str());
    EXPECT_TRUE(client) << client.error().text();
    if (!client) return nullptr;
    EXPECT_EQ(next(**client).kind, NoticeKind::kWelcome);
    return std::move(*client);
  }
  /// The next program gets this region, and finds nothing in it.
  void expectZeros(uint64_t standing) {
    const auto client = connect();
    Given given = ask(*client, 0);
    EXPECT_EQ(given.id, standing);
    for (uint64_t at = 0; at < given.size.value(); ++at) ASSERT_EQ(given.at(at), 0) << at;
  }
  const api::Scratch scratch_;
  const std::string socket_ = scratch_ / "agent.sock";
  std::string manager_socket_ = scratch_ / "sock";
  std::string fabric_ = "unix:" + manager_socket_;  // for agents
  std::unique_ptr<Program> manager_;
  std::unique_ptr<Program> agent_;
  std::unique_ptr<Program> memserver_;
  std::string control_;  // where the memory server takes orders
  std::unique_ptr<ca::Authority> authority_;
  ca::Issued lent_;  // the memory server's
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
