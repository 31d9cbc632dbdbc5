// SPDX-License-Identifier: Apache-2.0
// The configuration file: what is read, and that everything else is refused with its line.
#include "fabricmgr/serve/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/fabricmgr/api/mangle.h"

namespace tidepool::serve {
namespace {

using ::testing::HasSubstr;

constexpr char kEverything[] = R"(
state = "/x/fabric.db"
store = "etcd://a:1,b:2/f/x"
log_level = "debug"
cxl_switch = "/x/switch"
cxl_host = "m"
workers = 3
[unix]
path = "/x/sock"
admin_users = ["root", "12"]
operator_groups = ["root"]
others = "viewer"
[tcp]
listen = "0.0.0.0:7443"
certificate = "a"
key = "b"
ca = "c"
crl = "d"
[memservers]
certificate = "e"
key = "f"
ca = "g"
crl = "h"
[limits]
body_bytes = 4096
requests_per_second = 7
burst = 8
connections = 9
connections_per_principal = 10
handshakes = 11
handshakes_per_address = 12
local_connections = 13
quick_threads = 1
slow_threads = 2
[etcd]
name = "m1"
lease_seconds = 5
certificate = "i"
key = "j"
ca = "k"
crl = "l"
[leases]
hold_percent = 50
[audit]
keep_days = 400
keep_records = 1000000
)";

TEST(Config, TheKeyForEtcdIsNobodyElses) {
  char path[] = "/tmp/etcd-key-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  const std::string text = std::string("store = \"etcd://a:1/f\"\n[etcd]\ncertificate = \"i\"\n") +
                           "ca = \"k\"\nkey = \"" + path + "\"\n";
  EXPECT_TRUE(parseConfig(text, "file"));
  ASSERT_EQ(fchmod(fd, 0644), 0);
  const auto config = parseConfig(text, "file");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), ErrorCode::kPermission);
  EXPECT_NE(std::string(config.error().text()).find("chmod 600"), std::string::npos);
  close(fd);
  unlink(path);
}

TEST(Config, ReadsEverything) {
  const auto config = parseConfig(kEverything, "file");
  ASSERT_TRUE(config) << config.error().text();
  EXPECT_EQ(config->state, "/x/fabric.db");
  EXPECT_EQ(config->etcd->url(), "etcd://a:1,b:2/f/x");
  EXPECT_EQ(config->etcd->certificate, "i");
  EXPECT_EQ(config->etcd->key, "j");
  EXPECT_EQ(config->etcd->ca, "k");
  EXPECT_EQ(config->etcd->crl, "l");
  EXPECT_EQ(nameOf(*config), "m1");
  EXPECT_EQ(config->leader_lease, Nanoseconds(5'000'000'000));
  EXPECT_EQ(config->workers, 3u);
  EXPECT_EQ(config->memservers->certificate, "e");
  EXPECT_EQ(config->memservers->crl, "h");
  EXPECT_EQ(config->cxl_switch, "/x/switch");
  EXPECT_EQ(config->cxl_host, "m");
  const auto& server = config->server;
  EXPECT_EQ(server.unix_socket->path, "/x/sock");
  EXPECT_EQ(server.unix_socket->rules.others, api::Role::kViewer);
  EXPECT_EQ(server.tcp->address, "0.0.0.0:7443");
  EXPECT_EQ(server.tcp->tls.crl, "d");
  EXPECT_EQ(server.limits.body, 4096u);
  EXPECT_EQ(server.rate.per_second, 7u);
  EXPECT_EQ(server.rate.burst, 8u);
  EXPECT_EQ(server.connections, 9u);
  EXPECT_EQ(server.connections_of_one, 10u);
  EXPECT_EQ(server.handshakes, 11u);
  EXPECT_EQ(server.handshakes_of_one, 12u);
  EXPECT_EQ(server.local_connections, 13u);
  EXPECT_EQ(config->hold_percent, 50u);
  EXPECT_EQ(config->audit_days, 400u);
  EXPECT_EQ(config->audit_records, 1'000'000u);
  EXPECT_EQ(server.slow_threads, 2u);
}

TEST(Config, AnEmptyFileIsAGoodOne) {
  const auto config = parseConfig("", "file");
  ASSERT_TRUE(config) << config.error().text();
  EXPECT_EQ(config->server.unix_socket->path, "/run/tidepool/fabric.sock");
  EXPECT_EQ(config->server.unix_socket->rules.others, api::Role::kNone);
  EXPECT_FALSE(config->server.tcp);
  EXPECT_FALSE(config->etcd);
  EXPECT_THAT(nameOf(*config), HasSubstr(":/run/tidepool/fabric.sock"));
  EXPECT_THAT(nameOf(*parseConfig("[tcp]\nlisten=\"0.0.0.0:7780\"\ncertificate=\"a\"\nkey=\"b\"\n"
                                  "ca=\"c\"",
                                  "file")),
              ::testing::AllOf(::testing::StartsWith("https://"), ::testing::EndsWith(":7780")));
}

TEST(Config, RefusesWithLineAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"stat = \"x\"", "file:1: unknown key 'stat': did you mean 'state'?"},
      {"\n[unix]\npth = \"x\"", "file:3: unknown key 'pth' in [unix]: did you mean 'path'?"},
      {"state = 1", "file:1: 'state' has to be a text"},
      {"\nstore = \"/x/fabric.db\"", "file:2: store: '/x/fabric.db': that is not where an etcd is"},
      {"store = 1", "'store' has to be a text"},
      {"[etcd]\nca = \"x\"", "[etcd] needs 'certificate'"},
      {"[etcd]\nlease_seconds = 1", "from 2 to 60"},
      {"workers = 0", "'workers' has to be a whole number from 1 to 64"},
      {"workers = -1", "'workers' has to be a whole number from 1 to 64"},
      {"workers = 1.5", "'workers' has to be a whole number"},
      {"workers = 99999999999999999999", "file:1:"},
      {"workers = 1\nworkers = 2", "file:2:"},
      {"log_level = \"loud\"", "file:1: 'log_level' has to be one of \"debug\", \"info\""},
      {"unix = 1", "'unix' has to be a section: [unix]"},
      {"[unix]\nadmin_users = \"root\"", "file:2: 'admin_users' has to be a list of texts"},
      {"[unix]\nadmin_users = [1]", "'admin_users' has to be a list of texts"},
      {"[unix]\nviewer_users = [\"no-such-user-here\"]", "there is no user 'no-such-user-here'"},
      {"[unix]\nviewer_users = [\"99999999999\"]", "there is no user '99999999999'"},
      {"[unix]\nviewer_groups = [\"no-such-group\"]", "there is no group 'no-such-group'"},
      {"[unix]\nothers = \"admin\"", "file:2: 'others' has to be one of \"none\", \"viewer\""},
      {"[tcp]\nlisten = \"a:1\"", "[tcp] needs 'certificate'"},
      {"[tcp]\n", "[tcp] needs 'listen'"},
      {"[limits]\nbody_bytes = 1", "from 1024 to 16777216"},
      {"state = ", "file:1:"},
      {"state = \"\xff\"", "file:1:"},
  };
  for (const auto& [text, says] : cases) {
    const auto config = parseConfig(text, "file");
    ASSERT_FALSE(config) << text;
    EXPECT_EQ(config.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(config.error().text(), HasSubstr(says)) << text;
  }
  EXPECT_EQ(readConfig("/no/such/file").error().code(), ErrorCode::kNotFound);
}

TEST(Config, WhateverItIsGivenItReadsOrRefuses) {
  std::mt19937 random(23);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = api::mangle(kEverything, random);
    if (round % 10 == 0) text.resize(random() % text.size());
    const auto config = parseConfig(text, "file");
    if (config) continue;
    ++refused;
    EXPECT_EQ(config.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(config.error().text(), HasSubstr("file:")) << text;
  }
  EXPECT_GT(refused, 5'000);
}

}  // namespace
}  // namespace tidepool::serve
