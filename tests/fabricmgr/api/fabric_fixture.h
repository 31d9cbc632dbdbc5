// SPDX-License-Identifier: Apache-2.0
// A whole fabric manager in this process, with SQLite and emulated pools in a folder of its own,
// and clients that ask it as an administrator, or as whom they like over TLS.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fabricmgr/ca/authority.h"
#include "fabricmgr/serve/daemon.h"
#include "fabricmgr/store/sqlite_store.h"
#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool::api {

using Json = nlohmann::json;

struct Reply {
  int status = 0;
  std::string head;
  std::string body;
  Json json() const { return body.empty() ? Json() : Json::parse(body); }
  std::string header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

inline Reply replyOf(const std::string& text) {
  Reply reply;
  const size_t end = text.find("\r\n\r\n");
  if (text.size() > 12) reply.status = std::atoi(text.c_str() + 9);
  reply.head = text.substr(0, end);
  if (end != std::string::npos) reply.body = text.substr(end + 4);
  return reply;
}

class Fabric : public ::testing::Test {
 protected:
  static constexpr uint64_t kPoolBytes = 64 * kMiB;

  static constexpr int64_t kYear = 365 * 24 * 3600;

  Fabric() : ca_(*ca::Authority::init(scratch_ / "ca", 10 * kYear)) {
    const auto server = ca_.issue({"server", "manager", {"127.0.0.1"}, kYear}, scratch_ / "ca");
    config_.state = scratch_ / "fabric.db";
    config_.server.unix_socket =
        UnixListener{scratch_ / "sock", 0666, {{{Role::kAdmin, {getuid()}, {}}}, Role::kNone}};
    config_.server.tcp = TcpListener{
        "127.0.0.1:0", {server->certificate, server->key, ca_.certificatePath(), ca_.crlPath()}};
    config_.server.rate = {0, 0};
    EXPECT_TRUE(fabric::initSqliteStore(config_.state));
    start();
  }

  void start() {
    auto daemon = serve::Daemon::start(
        config_, "1.2.3", [this](Service::Level level, const std::string& line) {
          const MutexLock lock(logged_mutex_);
          logged_ += std::string(1, "DIWE"[static_cast<size_t>(level)]) + " " + line + "\n";
        });
    ASSERT_TRUE(daemon) << daemon.error().text();
    daemon_ = std::move(*daemon);
  }
  void stop() { daemon_.reset(); }

  /// Lines, each with D, I, W or E in front.
  std::string logged() {
    const MutexLock lock(logged_mutex_);
    return logged_;
  }

  Reply raw(const std::string& request) {
    RawClient client(config_.server.unix_socket->path);
    return replyOf(client.ask(request));
  }
  Reply get(const std::string& path) { return raw(getRequest(path)); }
  Reply post(const std::string& path, const Json& body, const std::string& more = "") {
    return raw(postRequest(path, body.dump(), more));
  }
  ClientFiles certificate(const std::string& kind, const std::string& name,
                          int64_t valid_seconds = kYear) {
    const auto issued = ca_.issue({kind, name, {}, valid_seconds}, scratch_ / "ca");
    EXPECT_TRUE(issued) << issued.error().text();
    return {ca_.certificatePath(), issued->certificate, issued->key};
  }
  Reply as(const ClientFiles& who, const std::string& request) {
    RawClient client(daemon_->port(), who);
    return replyOf(client.connected() ? client.ask(request) : "");
  }

  /// A pool "cxl" with the device "dev0" of 64 MiB, and the hosts "node1" and "node2".
  void furnish() {
    std::ofstream(scratch_ / "pool0").close();
    std::filesystem::resize_file(scratch_ / "pool0", kPoolBytes);
    EXPECT_EQ(post("/v1/pools", {{"name", "cxl"}, {"class", "cxl"}}).status, 201);
    const Reply device = post("/v1/devices", {{"name", "dev0"},
                                              {"pool", "cxl"},
                                              {"address", scratch_ / "pool0"},
                                              {"capacity_bytes", kPoolBytes}});
    EXPECT_EQ(device.status, 201) << device.body;
    for (const char* name : {"node1", "node2"}) {
      EXPECT_EQ(post("/v1/hosts", {{"name", name}, {"lease_ms", 600'000}}).status, 201);
    }
  }
  uint64_t assign(const std::string& host, uint64_t bytes) {
    const Reply reply = post("/v1/regions", {{"host", host}, {"size_bytes", bytes}});
    EXPECT_EQ(reply.status, 201) << reply.body;
    return reply.json().value("id", uint64_t{0});
  }
  /// Watchers come and go a moment after their requests and answers.
  void waitForWatchers(uint64_t count) {
    Json watchers;
    for (int i = 0; i < 2000 && watchers != count; ++i) {
      if (i > 0) poll(nullptr, 0, 5);
      watchers = get("/v1/status").json()["watchers"];
    }
    EXPECT_EQ(watchers, count);
  }
  /// Waits for the operation, by watching.
  std::string finish(uint64_t operation) {
    uint64_t since = 0;
    for (int i = 0; i < 100; ++i) {
      const Json now = get("/v1/operations/" + std::to_string(operation)).json();
      if (now.value("state", "") != "running") return now.value("state", "");
      since = get("/v1/events?wait_ms=2000&since=" + std::to_string(since)).json()["index"];
    }
    return "running";
  }

  Scratch scratch_;
  ca::Authority ca_;
  serve::Config config_;
  Mutex logged_mutex_;
  std::string logged_ TP_GUARDED_BY(logged_mutex_);
  std::unique_ptr<serve::Daemon> daemon_;
};

}  // namespace tidepool::api
