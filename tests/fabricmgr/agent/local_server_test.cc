// SPDX-License-Identifier: Apache-2.0
// The agent's socket, in this process: who is let in, what is cut off, and what a client makes of
// it.
#include "fabricmgr/agent/local_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <future>
#include <random>
#include <thread>

#include "runtime/transport/agent_client.h"
#include "tests/fabricmgr/api/server_fixture.h"

namespace tidepool::agent {
namespace {

using agent_wire::Notice;
using agent_wire::NoticeKind;
using agent_wire::Request;
using agent_wire::RequestKind;
using ::testing::HasSubstr;

constexpr Nanoseconds kPatience(20'000'000'000);

/// A server whose handler hands out a memfd for kAsk and echoes kStatus.
class LocalServerTest : public ::testing::Test {
 protected:
  LocalServerTest() {
    setup_.loop = &loop_;
    setup_.path = scratch_ / "agent.sock";
    setup_.host = "node1";
    setup_.allowed.users = {geteuid()};
    setup_.request = [this](ProgramId program, const Request& request) {
      answer(program, request);
    };
    setup_.gone = [this](ProgramId) { count(&gone_); };
    setup_.cut_off = [this](ProgramId) { count(&cut_off_); };
    setup_.refused = [](const std::string&) {};
    UniqueFd file(memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(file.get(), 4096), 0);
    agent_wire::Piece piece;
    piece.length = Bytes(4096);
    region_.pieces = {piece};
    region_.files = {std::make_shared<const UniqueFd>(std::move(file))};
  }
  ~LocalServerTest() override {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }
  void start() {
    server_ = std::make_unique<LocalServer>(setup_);
    const Status listening = server_->listen();
    ASSERT_TRUE(listening) << listening.error().text();
    thread_ = std::thread([this] { loop_.run(); });
  }
  std::unique_ptr<AgentClient> connect() {
    auto client = AgentClient::connect(setup_.path.c_str());
    EXPECT_TRUE(client) << client.error().text();
    return client ? std::move(*client) : nullptr;
  }
  /// One that the handler knows as last_.
  std::unique_ptr<AgentClient> connectAndAsk() {
    auto client = connect();
    AgentNotice notice;
    EXPECT_TRUE(client->wait(&notice, kPatience));
    EXPECT_TRUE(client->askStatus(1));
    EXPECT_TRUE(client->wait(&notice, kPatience));
    return client;
  }
  /// A socket without a client's manners.
  UniqueFd rawSocket() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    setup_.path.copy(address.sun_path, sizeof address.sun_path - 1);
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit = {20, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  /// All that comes until the other side hangs up; nothing if it does not.
  static std::vector<Notice> rest(const UniqueFd& fd, std::vector<std::string>* texts) {
    std::vector<Notice> notices;
    std::vector<std::byte> bytes(agent_wire::kMaxNotice);
    for (;;) {
      const ssize_t got = recv(fd.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == ECONNRESET) continue;  // reported once, ahead of what was said
      EXPECT_GE(got, 0) << "it did not hang up";
      if (got <= 0) return notices;
      const auto notice = agent_wire::decodeNotice({bytes.data(), static_cast<size_t>(got)});
      EXPECT_TRUE(notice);
      if (!notice) return notices;
      notices.push_back(*notice);
      texts->emplace_back(notice->text);
    }
  }
  void count(int* what) {
    const MutexLock lock(mutex_);
    ++*what;
    changed_.notifyAll();
  }
  void waitFor(int* what, int value) {
    const MutexLock lock(mutex_);
    while (*what != value) changed_.wait(mutex_);
  }
  /// Runs in the loop's thread, and waits for it.
  void inLoop(const std::function<void()>& work) {
    std::promise<void> done;
    loop_.post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  void answer(ProgramId program, const Request& request) {
    last_ = program;
    Notice notice;
    notice.tag = request.tag;
    if (request.kind == RequestKind::kAsk) {
      notice.kind = NoticeKind::kRegion;
      notice.region = 17;
      notice.size = Bytes(4096);
      return server_->tell(program, notice, &region_);
    }
    if (request.kind == RequestKind::kStatus) {
      notice.kind = NoticeKind::kStatus;
      notice.text = "{}";
      return server_->tell(program, notice, nullptr);
    }
    server_->refuse(program, request.tag, request.region,
                    Error::make(ErrorCode::kNotFound, "nothing of the kind"));
  }

  api::Scratch scratch_;
  EventLoop loop_;
  LocalServer::Setup setup_;
  Attached region_;
  std::unique_ptr<LocalServer> server_;
  std::thread thread_;
  ProgramId last_ = 0;  // of the loop's thread
  Mutex mutex_;
  CondVar changed_;
  int gone_ = 0;
  int cut_off_ = 0;
};

TEST_F(LocalServerTest, HandsOutDescriptors) {
  start();
  const auto client = connect();
  AgentNotice notice;
  ASSERT_TRUE(client->wait(&notice, kPatience));
  EXPECT_EQ(notice.kind, NoticeKind::kWelcome);
  EXPECT_STREQ(notice.text, "node1");
  for (uint64_t tag = 1; tag <= 100; ++tag) {  // far more than a process may have open, in the end
    ASSERT_TRUE(client->ask(tag, Bytes(4096), agent_wire::Want::kAny));
    ASSERT_TRUE(client->wait(&notice, kPatience));
    ASSERT_EQ(notice.kind, NoticeKind::kRegion);
    ASSERT_EQ(notice.tag, tag);
    ASSERT_EQ(notice.files.size(), 1u);
    ASSERT_EQ(notice.pieces.size(), 1u);
    const auto mapping = Mapping::sharedFile(notice.files[0].get(), Bytes(), Bytes(4096));
    ASSERT_TRUE(mapping);
    ++*reinterpret_cast<unsigned char*>(mapping->data());
  }
  const auto mapping = Mapping::sharedFile(region_.files[0]->get(), Bytes(), Bytes(4096));
  EXPECT_EQ(mapping->data()[0], std::byte{100});
}

TEST_F(LocalServerTest, AUserThatIsNotAllowedIsToldSo) {
  setup_.allowed.users = {geteuid() + 1};
  setup_.allowed.groups = {0xfffffff0};
  start();
  const auto client = connect();
  AgentNotice notice;
  ASSERT_TRUE(client->wait(&notice, kPatience));
  EXPECT_EQ(notice.kind, NoticeKind::kRefused);
  EXPECT_EQ(notice.error, ErrorCode::kPermission);
  EXPECT_THAT(notice.text, HasSubstr("--allow-user"));
  const Status after = client->wait(&notice, kPatience);
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), ErrorCode::kUnreachable);
}

TEST_F(LocalServerTest, AGroupOfTheUserIsEnough) {
  setup_.allowed.users = {};
  setup_.allowed.groups = {getegid()};
  start();
  AgentNotice notice;
  ASSERT_TRUE(connect()->wait(&notice, kPatience));
  EXPECT_EQ(notice.kind, NoticeKind::kWelcome);
}

TEST_F(LocalServerTest, OneUserCannotTakeAllConnections) {
  setup_.programs_of_user = 2;
  start();
  AgentNotice notice;
  const auto one = connect();
  ASSERT_TRUE(one->wait(&notice, kPatience));
  auto two = connect();
  ASSERT_TRUE(two->wait(&notice, kPatience));
  const auto three = connect();
  ASSERT_TRUE(three->wait(&notice, kPatience));
  EXPECT_EQ(notice.error, ErrorCode::kNoSpace);
  two.reset();
  waitFor(&gone_, 1);
  inLoop([] {});  // by now the connection is off the list, too
  ASSERT_TRUE(three->reconnect());
  ASSERT_TRUE(three->wait(&notice, kPatience));
  EXPECT_EQ(notice.kind, NoticeKind::kWelcome);
}

TEST_F(LocalServerTest, WhatBreaksTheProtocolIsCutOffWithAReason) {
  start();
  std::array<std::byte, agent_wire::kRequestSize> hello, ask;
  agent_wire::encode(Request{}, hello);
  Request request;
  request.kind = RequestKind::kAsk;
  agent_wire::encode(request, ask);
  const auto send = [](const UniqueFd& fd, std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  };
  const std::vector<std::byte> large(100'000);
  const std::vector<std::span<const std::byte>> talks[] = {
      {ask},                            // without a greeting
      {hello, hello},                   // twice
      {std::span(hello).first(63)},     // too short
      {large},                          // too long
      {hello, std::span(ask).first(1)}  // later
  };
  int expected = 0;
  for (const auto& talk : talks) {
    const UniqueFd fd = rawSocket();
    for (const auto bytes : talk) send(fd, bytes);
    std::vector<std::string> texts;
    const auto said = rest(fd, &texts);
    ASSERT_FALSE(said.empty());
    EXPECT_EQ(said.back().kind, NoticeKind::kRefused);
    EXPECT_THAT(texts.back(), HasSubstr("malformed"));
    waitFor(&cut_off_, ++expected);
  }
  // An empty message is one, too, and not the end.
  const UniqueFd fd = rawSocket();
  send(fd, hello);
  EXPECT_EQ(::send(fd.get(), "", 0, MSG_NOSIGNAL), 0);
  std::vector<std::string> texts;
  (void)rest(fd, &texts);
  waitFor(&cut_off_, ++expected);
  EXPECT_EQ(gone_, 0);
}

TEST_F(LocalServerTest, FuzzedConversationsHarmNobodyElse) {
  start();
  const auto client = connect();
  AgentNotice notice;
  ASSERT_TRUE(client->wait(&notice, kPatience));
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const UniqueFd fd = rawSocket();
    for (int k = 0; k < 4; ++k) {
      Request request;
      request.kind = static_cast<RequestKind>(k == 0 ? 1 : 1 + random() % 6);
      std::array<std::byte, agent_wire::kRequestSize + 8> bytes = {};
      agent_wire::encode(request, std::span(bytes).first<agent_wire::kRequestSize>());
      if (random() % 2 == 0) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      const size_t length =
          random() % 3 == 0 ? random() % bytes.size() : size_t{agent_wire::kRequestSize};
      (void)::send(fd.get(), bytes.data(), length, MSG_NOSIGNAL);
    }
  }
  ASSERT_TRUE(client->askStatus(5));
  ASSERT_TRUE(client->wait(&notice, kPatience));
  EXPECT_EQ(notice.tag, 5u);
  EXPECT_STREQ(notice.text, "{}");
}

TEST_F(LocalServerTest, AProgramThatDoesNotReadIsCutOff) {
  start();
  const auto client = connectAndAsk();
  inLoop([this] {
    Notice drain;
    drain.kind = NoticeKind::kDrain;
    for (int i = 0; i < 20'000; ++i) server_->tell(last_, drain, nullptr);
  });
  waitFor(&cut_off_, 1);
}

TEST_F(LocalServerTest, WhatDidNotFitIsSentLater) {
  start();
  const auto client = connectAndAsk();
  // Texts of 2 KiB: some hundred fill the socket, the others wait for room.
  const std::string text(2000, 'x');
  constexpr uint64_t kCount = 200;
  inLoop([&] {
    for (uint64_t i = 1; i <= kCount; ++i) {
      Notice drain;
      drain.kind = NoticeKind::kDrain;
      drain.region = i;
      drain.text = text;
      server_->tell(last_, drain, nullptr);
    }
  });
  for (uint64_t i = 1; i <= kCount; ++i) {
    AgentNotice notice;
    ASSERT_TRUE(client->wait(&notice, kPatience));
    ASSERT_EQ(notice.region, i);
  }
}

TEST_F(LocalServerTest, ASecondAgentFindsThePlaceTaken) {
  start();
  EventLoop loop;
  LocalServer::Setup setup = setup_;
  setup.loop = &loop;
  const Status second = LocalServer(setup).listen();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
  AgentNotice notice;
  ASSERT_TRUE(connect()->wait(&notice, kPatience)) << "the first one is still there";
}

TEST(AgentClient, SaysWhenThereIsNoAgent) {
  const auto client = AgentClient::connect("/nowhere/agent.sock");
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::kUnreachable);
  EXPECT_THAT(client.error().text(), HasSubstr("fabricmgr agent"));
  const auto long_path = AgentClient::connect(std::string(200, 'x').c_str());
  EXPECT_EQ(long_path.error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::agent
