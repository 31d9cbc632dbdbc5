// SPDX-License-Identifier: Apache-2.0
// The `fabricmgr` program from outside: usage errors, where it listens, clean ends, and what a tier
// sees when the server is stopped, killed or restarted under it.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/tier/remote_tier.h"
#include "tests/fabricmgr/program.h"

namespace tidepool {
namespace {

/// A running server on a free port (or `port`).
struct Running {
  explicit Running(const char* size, const std::string& port = "0")
      : program({"memserver", "--listen", "127.0.0.1:" + port, "--size", size}) {
    const std::string said = program.line();
    const std::string expected = "listening on 127.0.0.1:";
    EXPECT_EQ(said.substr(0, expected.size()), expected);
    address = said.substr(std::min(said.size(), strlen("listening on ")));
  }
  FarSpec far(Bytes size) const {
    FarSpec spec;
    spec.kind = farKind("remote");
    spec.size = size;
    snprintf(spec.target, sizeof spec.target, "%s", address.c_str());
    return spec;
  }
  Program program;
  std::string address;
};

struct BadUsage {
  std::vector<std::string> arguments;
  int code;
  const char* says;
};

TEST(FabricmgrCommand, BadUsageIsExplainedInOneLine) {
  const BadUsage cases[] = {
      {{}, 2, "--help"},
      {{"pond", "list"}, 2, "unknown command 'pond': did you mean 'pool'?"},
      {{"pool", "lst"}, 2, "unknown command 'pool lst': did you mean 'pool list'?"},
      {{"pool", "lst"}, 2, "Try `fabricmgr pool --help`."},
      {{"memserver"}, 2, "--listen"},
      {{"memserver", "--listen", "127.0.0.1:0"}, 2, "--size"},
      {{"memserver", "--listen", "nonsense", "--size", "1M"}, 2, "HOST:PORT"},
      {{"memserver", "--listen", "127.0.0.1:0", "--size", "1Q"}, 2, "'1Q' is not a size"},
      {{"memserver", "--listen", "127.0.0.1:0", "--size", "0"}, 2, "is not a size"},
      {{"memserver", "--listen", "127.0.0.1:0", "--size", "1M", "--threads", "0"}, 2, "--threads"},
      {{"memserver", "--listen", "192.0.2.1:1", "--size", "1M"}, 1, "cannot listen on 192.0.2.1:1"},
  };
  for (const BadUsage& one : cases) {
    Program program(one.arguments);
    const std::string errors = program.errors();
    EXPECT_EQ(program.wait(), one.code) << errors;
    EXPECT_NE(errors.find(one.says), std::string::npos) << errors;
  }
}

TEST(FabricmgrCommand, HelpAndVersionSucceed) {
  Program version({"--version"});
  EXPECT_EQ(version.line().substr(0, 10), "fabricmgr ");
  EXPECT_EQ(version.wait(), 0);
  Program help({"memserver", "--help"});
  EXPECT_EQ(help.wait(), 0);
}

TEST(FabricmgrCommand, ATakenPortIsAFailure) {
  Running first("1M");
  Program second({"memserver", "--listen", first.address, "--size", "1M"});
  EXPECT_NE(second.errors().find(first.address), std::string::npos);
  EXPECT_EQ(second.wait(), 1);
}

TEST(FabricmgrCommand, JsonNamesThePort) {
  Program program({"memserver", "--listen", "127.0.0.1:0", "--size", "1.5M", "--json"});
  const std::string line = program.line();
  EXPECT_EQ(line.rfind("{\"listening\":\"127.0.0.1:", 0), 0u) << line;
  EXPECT_NE(line.find("\"size_bytes\":1572864"), std::string::npos) << line;
}

TEST(FabricmgrCommand, SignalsEndItCleanlyWithClientsConnected) {
  for (int number : {SIGTERM, SIGINT}) {
    Running server("16M");
    auto tier = RemoteTier::open(server.far(Bytes(8 * kMiB)), Nanoseconds(20'000'000'000));
    ASSERT_TRUE(tier) << tier.error().text();
    server.program.signal(number);
    EXPECT_EQ(server.program.wait(), 0);
  }
}

TEST(RemoteTierAndServer, AStoppedServerTimesOutAndServesAgainWhenContinued) {
  Running server("16M");
  auto tier = RemoteTier::open(server.far(Bytes()), Nanoseconds(200'000'000));
  ASSERT_TRUE(tier);
  std::vector<std::byte> page(kPageSize, std::byte{9});
  const FrameRun run = {FrameIndex(1), PageCount(1)};
  ASSERT_TRUE((*tier)->write(run, page.data()));
  server.program.stop();
  std::vector<std::byte> back(kPageSize);
  EXPECT_EQ((*tier)->read(run, back.data()).error().code(), ErrorCode::kTimedOut);
  server.program.signal(SIGCONT);
  // The region has been without a connection for less than its grace: nothing is lost.
  Status status;
  for (int i = 0; i < 50 && !(status = (*tier)->read(run, back.data())); ++i) poll(nullptr, 0, 10);
  ASSERT_TRUE(status) << status.error().text();
  EXPECT_TRUE(back == page);
}

TEST(RemoteTierAndServer, AKilledServerIsUnreachableAndARestartedOneHasLostThePages) {
  auto server = std::make_unique<Running>("16M");
  const std::string port = server->address.substr(server->address.rfind(':') + 1);
  auto tier = RemoteTier::open(server->far(Bytes()), Nanoseconds(5'000'000'000));
  ASSERT_TRUE(tier);
  std::vector<std::byte> page(kPageSize, std::byte{9});
  const FrameRun run = {FrameIndex(1), PageCount(1)};
  ASSERT_TRUE((*tier)->write(run, page.data()));
  server->program.signal(SIGKILL);
  EXPECT_EQ(server->program.wait(), 1000 + SIGKILL);
  const Status dead = (*tier)->read(run, page.data());
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code(), ErrorCode::kUnreachable) << dead.error().text();
  server = std::make_unique<Running>("16M", port);
  const Status lost = (*tier)->read(run, page.data());
  ASSERT_FALSE(lost) << "lost pages must never read as zeros";
  EXPECT_EQ(lost.error().code(), ErrorCode::kLost) << lost.error().text();
}

}  // namespace
}  // namespace tidepool
