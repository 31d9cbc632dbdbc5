// SPDX-License-Identifier: Apache-2.0
// What one host must not see of another, with every part a process: a manager, a memory server, the
// agents of two hosts, and programs, some of which do what they should not.
#include "tests/fabricmgr/agent/processes_fixture.h"

namespace tidepool::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kPiece = kMiB;  // read or written at once

class Isolation : public AgentProcesses {
 protected:
  void startBoth() {
    startAgent();
    other_agent_ = agentOf("node2", other_socket_);
    await([&] { return get("/v1/hosts")["items"].size() == 2; });
  }
  static ErrorCode write(RemoteClient& client, uint64_t at, const std::vector<std::byte>& bytes) {
    return finish(client, client.submitWrite(1, Bytes(at), bytes));
  }
  static ErrorCode read(RemoteClient& client, uint64_t at, std::vector<std::byte>* bytes) {
    return finish(client, client.submitRead(2, Bytes(at), *bytes));
  }
  static void fill(Given& given, std::byte with) {
    if (given.memory.valid()) {
      memset(given.memory.data(), static_cast<int>(with), given.size.value());
      return;
    }
    const auto client = open(given, helloOf(given));
    ASSERT_TRUE(client) << client.error().text();
    const std::vector<std::byte> piece(kPiece, with);
    for (uint64_t at = 0; at < given.size.value(); at += kPiece) {
      ASSERT_EQ(write(**client, at, piece), ErrorCode());
    }
  }
  static void expectAll(Given& given, std::byte expected) {
    const std::vector<std::byte> all(kPiece, expected);
    std::vector<std::byte> seen(kPiece);
    Result<std::unique_ptr<RemoteClient>> client;
    if (!given.memory.valid()) {
      client = open(given, helloOf(given));
      ASSERT_TRUE(client) << client.error().text();
    }
    for (uint64_t at = 0; at < given.size.value(); at += kPiece) {
      if (given.memory.valid()) {
        memcpy(seen.data(), &given.at(at), kPiece);
      } else {
        ASSERT_EQ(read(**client, at, &seen), ErrorCode());
      }
      ASSERT_TRUE(seen == all) << "in the piece at " << at;
    }
  }
  uint64_t capacityOf(const std::string& device) {
    return get("/v1/devices/" + device).value("capacity_bytes", uint64_t{0});
  }
  /// All of a device goes from a program of one host to one of the other, and back by force.
  void passOn(const std::string& device, Want want) {
    const uint64_t size = capacityOf(device);
    const auto one = connect();
    const auto two = connectTo(other_socket_);
    Given first = ask(*one, size, want);
    ASSERT_EQ(first.size, Bytes(size));
    fill(first, std::byte{0x5a});
    askInVain(*two, kMiB, ErrorCode::kNoSpace, want);
    first.memory = Mapping();
    giveBack(*one, first);
    await([&] { return stateOf(first.id) == "free"; });

    Given second = ask(*two, size, want);
    ASSERT_EQ(second.size, Bytes(size));
    expectAll(second, std::byte{});
    fill(second, std::byte{0xa5});
    second.memory = Mapping();
    post("/v1/regions/" + std::to_string(second.id) + "/release", {{"force", true}});
    EXPECT_EQ(next(*two).kind, NoticeKind::kGone);
    await([&] { return stateOf(second.id) == "free"; });

    Given third = ask(*one, size, want);
    ASSERT_EQ(third.size, Bytes(size));
    expectAll(third, std::byte{});
    for (const Given* given : {&first, &second}) {
      const Json evidence = get("/v1/regions/" + std::to_string(given->id) + "/evidence")["items"];
      ASSERT_EQ(evidence.size(), 1u);
      EXPECT_EQ(evidence[0]["bytes"], size);
      EXPECT_EQ(evidence[0]["nonzero_bytes"], 0);
    }
  }

  const std::string other_socket_ = scratch_ / "agent2.sock";
  std::unique_ptr<Program> other_agent_;
};

TEST_F(Isolation, AllOfAPoolFileReadsAsZerosToTheNextHost) {
  startBoth();
  passOn("dev0", Want::kDirect);
}

TEST_F(Isolation, AllOfAMemoryServerReadsAsZerosToTheNextHost) {
  lend("64M");
  startBoth();
  passOn("mem0", Want::kFetch);
}

TEST_F(Isolation, WithoutTheTokenOfTheRegionThereIsNothingToBeHad) {
  lend("64M");
  startBoth();
  const auto one = connect();
  const auto two = connectTo(other_socket_);
  Given given = ask(*one, 4 * kMiB, Want::kFetch);
  Given others = ask(*two, 4 * kMiB, Want::kFetch);
  fill(given, std::byte{0x5a});
  const wire::ClientHello good = helloOf(given);
  const auto refused = [&](const std::function<void(wire::ClientHello&)>& spoil) {
    wire::ClientHello bad = good;
    spoil(bad);
    const auto client = open(given, bad);
    return client ? ErrorCode() : client.error().code();
  };
  EXPECT_EQ(refused([](auto& hello) { hello.token = {}; }), ErrorCode::kPermission);
  EXPECT_EQ(refused([](auto& hello) { hello.token.bytes[7] ^= 1; }), ErrorCode::kPermission);
  EXPECT_EQ(refused([&](auto& hello) { hello.token = helloOf(others).token; }),
            ErrorCode::kPermission);
  EXPECT_NE(refused([](auto& hello) { hello.epoch = hello.epoch + 1; }), ErrorCode());
  EXPECT_NE(refused([](auto& hello) { hello.epoch = hello.epoch - 1; }), ErrorCode());
  EXPECT_NE(refused([](auto& hello) { hello.region &= ~(1ull << 63); }), ErrorCode());
  // Whoever has a region of its own there sees that alone, whatever offset it asks for.
  const auto stranger = open(others, helloOf(others));
  ASSERT_TRUE(stranger);
  std::vector<std::byte> piece(kPiece);
  EXPECT_EQ(read(**stranger, 4 * kMiB, &piece), ErrorCode::kInvalidArgument);
  EXPECT_EQ(write(**stranger, 4 * kMiB, piece), ErrorCode::kInvalidArgument);
  expectAll(others, std::byte{});
  expectAll(given, std::byte{0x5a});
}

TEST_F(Isolation, AnOldEpochReadsAndWritesNothing) {
  lend("64M");
  startBoth();
  const auto assigned =
      post("/v1/regions", {{"host", kHost}, {"size_bytes", 4 * kMiB}, {"class", "remote"}});
  const auto one = connect();
  const auto two = connectTo(other_socket_);
  Given before = ask(*one, 4 * kMiB, Want::kFetch);
  ASSERT_EQ(before.id, assigned["id"]);
  fill(before, std::byte{0x5a});
  const auto connected = open(before, helloOf(before));  // and keeps its connection
  ASSERT_TRUE(connected) << connected.error().text();
  const std::string path = "/v1/regions/" + std::to_string(before.id);
  post(path + "/transfer", {{"host", "node2"}, {"force", true}});
  EXPECT_EQ(next(*one).kind, NoticeKind::kGone);
  await([&] { return get(path).value("host", "") == "node2" && stateOf(before.id) == "attached"; });

  const std::vector<std::byte> own(kPiece, std::byte{0x77});
  std::vector<std::byte> seen(kPiece, std::byte{0x11});
  EXPECT_EQ(write(**connected, 0, own), ErrorCode::kStaleEpoch);
  EXPECT_NE(read(**connected, 0, &seen), ErrorCode());
  EXPECT_TRUE(seen == std::vector<std::byte>(kPiece, std::byte{0x11}));
  EXPECT_EQ(open(before, helloOf(before)).error().code(), ErrorCode::kStaleEpoch);
  wire::ClientHello guess = helloOf(before);
  guess.epoch = Epoch(get(path).value("epoch", uint64_t{0}));
  EXPECT_GT(guess.epoch, before.epoch);
  EXPECT_EQ(open(before, guess).error().code(), ErrorCode::kPermission);

  Given after = ask(*two, 4 * kMiB, Want::kFetch);
  EXPECT_EQ(after.id, before.id);
  expectAll(after, std::byte{});
  EXPECT_NE(write(**connected, 0, own), ErrorCode());
  expectAll(after, std::byte{});
}

TEST_F(Isolation, WhatOneUserHadGoesToNoOther) {
  if (geteuid() != 0) return;  // who cannot become another user
  startAgent({"--allow-all"});
  const uint64_t standing = assign(4 * kMiB);
  const auto client = connect();
  Given given = ask(*client, 0);
  EXPECT_EQ(given.id, standing);
  fill(given, std::byte{0x5a});
  given.memory = Mapping();
  giveBack(*client, given);
  std::filesystem::permissions(scratch_ / "", std::filesystem::perms(0755));
  OtherProgram other([&] {
    EXPECT_EQ(setgid(65'534), 0);
    EXPECT_EQ(setuid(65'534), 0);
    auto own = connect();
    askInVain(*own, 0, ErrorCode::kNoSpace);
    Given fresh = ask(*own, 4 * kMiB);
    EXPECT_NE(fresh.id, standing);
    expectAll(fresh, std::byte{});
    return own;
  });
  EXPECT_TRUE(other.done());
  EXPECT_EQ(ask(*client, 0).id, standing);
}

TEST_F(Isolation, AnotherHostsCertificateOpensNothing) {
  serveOverTls();
  const client::Target node1 = targetAs("node1");
  const client::Target node2 = targetAs("node2");
  startAgent(optionsOf(node1));
  other_agent_ = agentOf("node2", other_socket_, optionsOf(node2));
  await([&] { return get("/v1/hosts")["items"].size() == 2; });
  const auto program = connect();
  Given given = ask(*program, 4 * kMiB);
  fill(given, std::byte{0x5a});

  const auto statusAs = [&](client::Target target, const std::string& path, bool post) {
    client::HttpClient client(target);
    const client::Reply reply = post ? client.post(path, "{}", {}) : client.get(path);
    EXPECT_THAT(reply.body, Not(HasSubstr(scratch_ / "pool0"))) << path;
    return reply.status;
  };
  const std::string region = "/v1/regions/" + std::to_string(given.id);
  const std::string beat = "/v1/hosts/node1/heartbeat";
  const uint64_t before = get("/v1/status").value("index", uint64_t{0});
  EXPECT_EQ(statusAs(node1, beat, true), 200);
  client::Target posing = node2;
  posing.headers = {"Tidepool-Host: node1"};
  for (const client::Target& target : {node2, posing}) {
    EXPECT_EQ(statusAs(target, region, false), 403);
    EXPECT_EQ(statusAs(target, region + "/access", false), 403);
    EXPECT_EQ(statusAs(target, "/v1/regions?host=node1", false), 403);
    EXPECT_EQ(statusAs(target, region + "/release", true), 403);
    EXPECT_EQ(statusAs(target, beat, true), 403);
  }
  // Nobody's certificate, and one of an authority that is not the manager's.
  client::Target nobody = node2;
  nobody.certificate = nobody.key = "";
  auto stranger = ca::Authority::init(scratch_ / "ca2", 3600);
  ASSERT_TRUE(stranger);
  const auto forged = stranger->issue({"host", "node1", {}, 3600}, scratch_ / "ca2");
  ASSERT_TRUE(forged);
  client::Target forger = node1;
  forger.certificate = forged->certificate;
  forger.key = forged->key;
  for (const client::Target& target : {nobody, forger}) {
    EXPECT_EQ(statusAs(target, region + "/access", false), 0) << "not even an answer";
  }
  EXPECT_EQ(get("/v1/status")["index"], before) << "nothing has changed";

  // An agent that says it is node1's gets nothing either, and so do its programs.
  const std::string third_socket = scratch_ / "agent3.sock";
  const auto impostor = agentOf("node1", third_socket, optionsOf(node2));
  const auto duped = connectTo(third_socket);
  awaitStatus(*duped, "\"manager\":\"refused\"");
  askInVain(*duped, 4 * kMiB, ErrorCode::kPermission);
  // Nor does one whose certificate is of another authority, which it learns by an alert.
  const std::string fourth_socket = scratch_ / "agent4.sock";
  const auto foreign = agentOf("node1", fourth_socket, optionsOf(forger));
  const auto misled = connectTo(fourth_socket);
  awaitStatus(*misled, "\"manager\":\"refused\"");
  askInVain(*connectTo(other_socket_), 0, ErrorCode::kNoSpace);
  expectAll(given, std::byte{0x5a});
}

TEST_F(Isolation, AnAgentSaysThatItsCertificateEndsAndTakesTheNextOne) {
  serveOverTls();
  startAgent(optionsOf(targetAs("node1")));
  // It is good for an hour, which is soon.
  awaitStatus(*connect(), "\"health\":\"warning\",\"host\":\"node1\",\"manager\":\"member\"");
  const auto late = authority_->issue({"host", "node2", {}, -60}, scratch_ / "ca");
  ASSERT_TRUE(late) << late.error().text();
  client::Target node2 = targetAs("node3");
  node2.certificate = late->certificate;
  node2.key = late->key;
  other_agent_ = agentOf("node2", other_socket_, optionsOf(node2));
  const auto program = connectTo(other_socket_);
  awaitStatus(*program, "the certificate of agent node2 (" + late->certificate + ") expired ");
  awaitStatus(*program, "\"health\":\"error\",\"host\":\"node2\",\"manager\":\"refused\"");
  EXPECT_THAT(get("/v1/health").dump(), HasSubstr("the certificate of agent node2 expired "));
  ASSERT_TRUE(authority_->renew(late->certificate, 3600));
  awaitStatus(*program, "\"health\":\"warning\",\"host\":\"node2\",\"manager\":\"member\"");
  EXPECT_THAT(get("/v1/health").dump(), Not(HasSubstr("CERTIFICATE_EXPIRED")));
}

}  // namespace
}  // namespace tidepool::agent
