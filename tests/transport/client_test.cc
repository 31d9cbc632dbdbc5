// SPDX-License-Identifier: Apache-2.0
// RemoteClient against peers that misbehave by script: hang, die, lie, answer in pieces, or refuse.
// Every request must end exactly once, and no byte may land in the wrong place.
#include "runtime/transport/client.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <map>

#include "fabricmgr/memserver/server.h"
#include "tests/transport/fake_peer.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr Nanoseconds kShort = Nanoseconds(100'000'000);
constexpr ErrorCode kGood = ErrorCode{};

using Endings = std::map<uint64_t, std::vector<ErrorCode>>;

std::unique_ptr<RemoteClient> connectTo(const Endpoint& endpoint, ClientOptions options) {
  auto client = RemoteClient::connect(endpoint, {}, options);
  EXPECT_TRUE(client) << client.error().text();
  return std::move(*client);
}

std::unique_ptr<memserver::Server> startServer() {
  memserver::ServerOptions options;
  options.size = Bytes(kMiB);
  auto server = memserver::Server::start(options);
  EXPECT_TRUE(server);
  return std::move(*server);
}

/// Takes `count` request headers (of requests without payload) from a socket.
std::vector<wire::Request> takeRequests(int socket, size_t count) {
  std::vector<wire::Request> requests;
  std::array<std::byte, wire::kRequestSize> bytes;
  while (requests.size() < count) {
    if (recv(socket, bytes.data(), bytes.size(), MSG_WAITALL) != wire::kRequestSize) break;
    requests.push_back(*wire::decodeRequest(bytes));
  }
  return requests;
}

void append(std::vector<std::byte>& stream, const wire::Response& response, std::byte fill) {
  std::array<std::byte, wire::kResponseSize> header;
  wire::encode(response, header);
  stream.insert(stream.end(), header.begin(), header.end());
  stream.insert(stream.end(), response.payload, fill);
}

void sendAll(int socket, std::span<const std::byte> bytes, size_t piece) {
  while (!bytes.empty()) {
    const size_t now = std::min(piece, bytes.size());
    if (send(socket, bytes.data(), now, MSG_NOSIGNAL) != static_cast<ssize_t>(now)) return;
    bytes = bytes.subspan(now);
  }
}

void waitForEnd(int socket) {
  std::byte sink[4096];
  while (recv(socket, sink, sizeof sink, 0) > 0) {
  }
}

/// Polls, `at_once` completions at a time, until nothing is in flight.
Endings drain(RemoteClient& client, size_t at_once) {
  Endings ended;
  std::vector<FetchCompletion> done(at_once);
  while (client.inFlight() > 0) {
    const size_t count = client.poll(done);
    for (size_t i = 0; i < count; ++i) ended[done[i].tag].push_back(done[i].error);
    if (count > 0) continue;
    pollfd waiting = {client.fd(), client.events(), 0};
    poll(&waiting, 1, static_cast<int>(client.timeToDeadline().value() / 1'000'000 + 1));
  }
  return ended;
}

TEST(RemoteClient, AHungServerTimesEveryRequestOut) {
  ScriptedServer server([](int socket) { waitForEnd(socket); });
  {
    auto client = connectTo(server.endpoint(), {.timeout = kShort});
    std::vector<std::byte> pages(8 * kPageSize);
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(client->submitRead(i, Bytes(), {pages.data() + i * kPageSize, kPageSize}));
    }
    const Endings ended = drain(*client, 3);
    EXPECT_EQ(ended.size(), 8u);
    for (const auto& [tag, codes] : ended) {
      EXPECT_EQ(codes, std::vector<ErrorCode>{ErrorCode::kTimedOut}) << tag;
    }
    EXPECT_EQ(client->submitPing(1).error().code(), ErrorCode::kUnreachable);
  }
}

TEST(RemoteClient, AServerThatTakesNothingTimesOutToo) {
  // The socket's buffers fill up, so most of the requests never leave.
  std::promise<void> over;
  ScriptedServer server([&over](int) { over.get_future().wait(); });
  auto client = connectTo(server.endpoint(), {.timeout = kShort});
  std::vector<std::byte> run(wire::kMaxData);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(client->submitWrite(i, Bytes(), run));
  const Endings ended = drain(*client, 3);
  EXPECT_EQ(ended.size(), 8u);
  for (const auto& [tag, codes] : ended) {
    EXPECT_EQ(codes, std::vector<ErrorCode>{ErrorCode::kTimedOut}) << tag;
  }
  over.set_value();
}

TEST(RemoteClient, AWaitingCallTimesOutToo) {
  ScriptedServer server([](int socket) { waitForEnd(socket); });
  auto client = connectTo(server.endpoint(), {.timeout = kShort});
  ASSERT_TRUE(client->submitPing(9));
  const FetchCompletion done = client->wait();
  EXPECT_EQ(done.tag, 9u);
  EXPECT_EQ(done.error, ErrorCode::kTimedOut);
  client.reset();
}

TEST(RemoteClient, AServerThatDiesInMidAnswerFailsTheRest) {
  ScriptedServer server([](int socket) {
    const auto requests = takeRequests(socket, 4);
    std::vector<std::byte> stream;
    append(stream, {.status = 0, .tag = requests.at(0).tag, .payload = kPageSize}, std::byte{1});
    append(stream, {.status = 0, .tag = requests.at(1).tag, .payload = kPageSize}, std::byte{2});
    stream.resize(stream.size() - 100);
    sendAll(socket, stream, stream.size());
  });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  std::vector<std::byte> pages(4 * kPageSize);
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(client->submitRead(i, Bytes(), {pages.data() + i * kPageSize, kPageSize}));
  }
  const Endings ended = drain(*client, 16);
  EXPECT_EQ(ended.at(0), std::vector<ErrorCode>{kGood});
  for (uint64_t tag : {1u, 2u, 3u}) {
    EXPECT_EQ(ended.at(tag), std::vector<ErrorCode>{ErrorCode::kUnreachable}) << tag;
  }
}

std::vector<std::byte> takeLists(int socket, size_t count, size_t rows) {
  std::vector<std::byte> all(count * (wire::kRequestSize + rows * wire::kRowOffsetSize));
  EXPECT_EQ(recv(socket, all.data(), all.size(), MSG_WAITALL), static_cast<ssize_t>(all.size()));
  return all;
}

/// A client that asks for a page and then for many others is told of the page when it has come, and
/// has it while the others are still on their way.
TEST(RemoteClient, APageThatIsAskedForFirstWaitsForNoScatteredRequestBehindIt) {
  constexpr uint64_t kRows = 256, kScattered = 4;
  std::atomic<bool> page_taken{false};
  ScriptedServer server([&](int socket) {
    const auto first = takeRequests(socket, 1);
    EXPECT_EQ(first.at(0).opcode, wire::Opcode::kRead);
    takeLists(socket, kScattered, kRows);
    std::vector<std::byte> stream;
    append(stream, {.status = 0, .tag = 7, .payload = kPageSize}, std::byte{1});
    for (uint64_t tag = 0; tag < kScattered; ++tag) {
      append(stream, {.status = 0, .tag = tag, .payload = kRows * kPageSize}, std::byte{2});
    }
    // The page and half of the next answer; the rest when the client has the page.
    const auto bytes = std::span(stream);
    const size_t half = kPageSize + kRows / 2 * kPageSize;
    sendAll(socket, bytes.first(half), half);
    page_taken.wait(false);
    sendAll(socket, bytes.subspan(half), stream.size());
    waitForEnd(socket);
  });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  std::vector<std::byte> page(kPageSize), others(kScattered * kRows * kPageSize);
  std::vector<uint64_t> offsets(kRows);
  for (uint64_t i = 0; i < kRows; ++i) offsets[i] = i * 3 * kPageSize;
  ASSERT_TRUE(client->submitRead(7, Bytes(), page));
  for (uint64_t tag = 0; tag < kScattered; ++tag) {
    ASSERT_TRUE(
        client->submitReadRows(tag, offsets, Bytes(kPageSize),
                               {others.data() + tag * kRows * kPageSize, kRows * kPageSize}));
  }
  const FetchCompletion done = client->wait();
  EXPECT_EQ(done.tag, 7u);
  EXPECT_EQ(done.error, kGood);
  EXPECT_EQ(page, std::vector<std::byte>(kPageSize, std::byte{1}));
  EXPECT_EQ(client->inFlight(), kScattered);
  page_taken = true;
  page_taken.notify_one();
  const Endings ended = drain(*client, 2);
  for (uint64_t tag = 0; tag < kScattered; ++tag) {
    EXPECT_EQ(ended.at(tag), std::vector<ErrorCode>{kGood});
  }
  EXPECT_EQ(others, std::vector<std::byte>(others.size(), std::byte{2}));
  client.reset();
}

TEST(RemoteClient, AConnectionThatIsLostInAScatteredAnswerEndsEachRequestOnce) {
  constexpr uint64_t kRows = 8, kScattered = 5;
  constexpr size_t kAnswer = wire::kResponseSize + kRows * kPageSize;
  // In the second answer: in its header, behind it, within a page, between two, before the last
  // byte; or behind it.
  for (const size_t cut : {size_t{0}, size_t{10}, wire::kResponseSize, size_t{3000},
                           wire::kResponseSize + 2 * kPageSize, kAnswer - 1, kAnswer}) {
    ScriptedServer server([&](int socket) {
      takeLists(socket, kScattered, kRows);
      std::vector<std::byte> stream;
      append(stream, {.status = 0, .tag = 0, .payload = kRows * kPageSize}, std::byte{1});
      append(stream, {.status = 0, .tag = 1, .payload = kRows * kPageSize}, std::byte{1});
      sendAll(socket, std::span(stream).first(kAnswer + cut), stream.size());
    });
    auto client = connectTo(server.endpoint(), {.timeout = kLong});
    std::vector<std::byte> pages(kScattered * kRows * kPageSize);
    const uint64_t offsets[kRows] = {0, 8192, 4096, 40960, 1, 81920, 0, 409600};
    for (uint64_t tag = 0; tag < kScattered; ++tag) {
      const std::span<std::byte> to(pages.data() + tag * kRows * kPageSize, kRows * kPageSize);
      ASSERT_TRUE(client->submitReadRows(tag, offsets, Bytes(kPageSize), to));
    }
    const Endings ended = drain(*client, 3);
    const uint64_t whole = cut == kAnswer ? 2 : 1;
    for (uint64_t tag = 0; tag < kScattered; ++tag) {
      const ErrorCode expected = tag < whole ? kGood : ErrorCode::kUnreachable;
      EXPECT_EQ(ended.at(tag), std::vector<ErrorCode>{expected}) << cut << " " << tag;
    }
  }
}

/// Good answers, errors and empty ones mixed, sent in pieces of every awkward size.
class Pieces : public testing::TestWithParam<size_t> {};

TEST_P(Pieces, AnswersLandInPlaceHoweverTheyArrive) {
  constexpr size_t kCount = 24;
  const auto isError = [](size_t i) { return i % 5 == 1; };  // where the client expects a page
  ScriptedServer server([&, piece = GetParam()](int socket) {
    const auto requests = takeRequests(socket, kCount);
    std::vector<std::byte> stream;
    for (size_t i = 0; i < requests.size(); ++i) {
      wire::Response response{.status = 0, .tag = requests[i].tag};
      if (isError(i)) {
        response.status = static_cast<uint16_t>(ErrorCode::kStaleEpoch);
      } else {
        response.payload = requests[i].length;
      }
      append(stream, response, static_cast<std::byte>(i + 1));
    }
    sendAll(socket, stream, piece);
    waitForEnd(socket);
  });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  std::vector<std::vector<std::byte>> memory(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    memory[i].resize(i % 7 == 3 ? 0 : (i % 3 + 1) * kPageSize);
    ASSERT_TRUE(memory[i].empty() ? client->submitPing(i)
                                  : client->submitRead(i, Bytes(), memory[i]));
  }
  const Endings ended = drain(*client, 2);
  client.reset();
  ASSERT_EQ(ended.size(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const ErrorCode expected = isError(i) ? ErrorCode::kStaleEpoch : kGood;
    EXPECT_EQ(ended.at(i), std::vector<ErrorCode>{expected}) << i;
    if (isError(i)) continue;
    const std::vector<std::byte> wanted(memory[i].size(), static_cast<std::byte>(i + 1));
    EXPECT_TRUE(memory[i] == wanted) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(RemoteClient, Pieces,
                         testing::Values(1, 7, 23, 24, 25, 4095, 4121, 10'000, 1 << 20));

struct Lie {
  const char* name;
  wire::Response (*tell)(uint64_t tag);
};

class LyingServer : public testing::TestWithParam<Lie> {};

TEST_P(LyingServer, FailsTheConnectionAndTouchesNothingElse) {
  ScriptedServer server([](int socket) {
    const auto requests = takeRequests(socket, 1);
    std::vector<std::byte> stream;
    append(stream, GetParam().tell(requests.at(0).tag), std::byte{0xee});
    sendAll(socket, stream, stream.size());
    waitForEnd(socket);
  });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  std::vector<std::byte> memory(3 * kPageSize, std::byte{0x5a});
  ASSERT_TRUE(client->submitRead(77, Bytes(), {memory.data() + kPageSize, kPageSize}));
  const Endings ended = drain(*client, 4);
  EXPECT_EQ(ended.at(77).size(), 1u);
  EXPECT_NE(ended.at(77).front(), kGood);
  EXPECT_TRUE(client->failed());
  client.reset();
  for (size_t i = 0; i < kPageSize; ++i) {
    ASSERT_EQ(memory[i], std::byte{0x5a});
    ASSERT_EQ(memory[2 * kPageSize + i], std::byte{0x5a});
  }
}

wire::Response lie(uint16_t status, uint64_t tag, uint32_t payload) {
  return {.status = status, .tag = tag, .payload = payload};
}

INSTANTIATE_TEST_SUITE_P(
    RemoteClient, LyingServer,
    testing::Values(Lie{"wrongTag", [](uint64_t tag) { return lie(0, tag + 1, 4096); }},
                    Lie{"wrongTagNoPayload", [](uint64_t tag) { return lie(8, tag + 1, 0); }},
                    Lie{"tooLong", [](uint64_t tag) { return lie(0, tag, 8192); }},
                    Lie{"tooShort", [](uint64_t tag) { return lie(0, tag, 100); }},
                    Lie{"empty", [](uint64_t tag) { return lie(0, tag, 0); }},
                    Lie{"beyondLimit", [](uint64_t tag) { return lie(0, tag, 9u << 20); }},
                    Lie{"errorWithPayload", [](uint64_t tag) { return lie(8, tag, 4096); }}),
    [](const auto& named) { return named.param.name; });

TEST(RemoteClient, AnAnswerThatNobodyAskedForFailsIt) {
  ScriptedServer server([](int socket) {
    std::vector<std::byte> stream;
    append(stream, {.status = 0, .tag = 5}, std::byte{});
    append(stream, {.status = 0, .tag = 5}, std::byte{});
    sendAll(socket, stream, stream.size());
    waitForEnd(socket);
  });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  ASSERT_TRUE(client->submitPing(5));
  FetchCompletion done = client->wait();
  EXPECT_TRUE(done.ok());
  ASSERT_TRUE(client->submitPing(6));
  done = client->wait();
  EXPECT_FALSE(done.ok());
  client.reset();
}

TEST(RemoteClient, AFullRingPushesBack) {
  auto server = startServer();
  auto client = connectTo(loopback(server->port()), {.timeout = kLong, .max_in_flight = 16});
  uint64_t next = 0;
  for (int round = 0; round < 10; ++round) {
    Status queued;
    while ((queued = client->submitPing(next))) ++next;
    EXPECT_EQ(queued.error().code(), ErrorCode::kNoSpace);
    EXPECT_EQ(client->inFlight(), 16u);
    EXPECT_EQ(drain(*client, 5).size(), 16u);
  }
  EXPECT_EQ(next, 160u);
}

TEST(RemoteClient, AnswersLeftInTheBufferAreNotSleptOn) {
  auto server = startServer();
  auto client = connectTo(loopback(server->port()), {.timeout = kLong});
  for (uint64_t i = 0; i < 32; ++i) ASSERT_TRUE(client->submitPing(i));
  ASSERT_TRUE(client->flush());
  // One at a time: when the rest waits in the client and not on the socket, the time to the
  // deadline must be 0, or this test sleeps until it is killed.
  FetchCompletion done;
  for (uint64_t i = 0; i < 32; ++i) {
    while (client->poll({&done, 1}) == 0) {
      pollfd waiting = {client->fd(), POLLIN, 0};
      poll(&waiting, 1, client->timeToDeadline() == Nanoseconds(0) ? 0 : -1);
    }
    EXPECT_EQ(done.tag, i);
    if (client->timeToDeadline() == Nanoseconds(0)) continue;
    if (i < 31) {
      pollfd waiting = {client->fd(), POLLIN, 0};
      poll(&waiting, 1, -1);
    }
  }
}

TEST(RemoteClient, ImpossibleRequestsNeverLeave) {
  ScriptedServer server([](int socket) { waitForEnd(socket); });
  auto client = connectTo(server.endpoint(), {.timeout = kLong});
  std::vector<std::byte> memory(wire::kMaxData + kPageSize);
  const std::span<std::byte> all(memory);
  EXPECT_EQ(client->submitRead(1, Bytes(), all).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(client->submitRead(1, Bytes(1), all.first(kPageSize)));
  EXPECT_FALSE(client->submitRead(1, Bytes(), all.first(100)));
  EXPECT_FALSE(client->submitWrite(1, Bytes(), all.first(0)));
  EXPECT_FALSE(client->submitDiscard(1, Bytes(), Bytes(5 * kGiB)));
  const uint64_t offsets[2] = {0, 64};
  EXPECT_FALSE(client->submitReadRows(1, offsets, Bytes(8), all.first(16)));
  EXPECT_FALSE(client->submitReadRows(1, offsets, Bytes(64), all.first(64)));
  EXPECT_FALSE(client->submitWriteRows(1, {}, Bytes(64), all.first(0)));
  EXPECT_EQ(client->inFlight(), 0u);
  client.reset();
}

TEST(Endpoints, AreParsedOrExplained) {
  for (const char* good : {"10.0.0.7:7777", "localhost:0", "[::1]:65535"}) {
    EXPECT_TRUE(parseEndpoint(good)) << good;
  }
  EXPECT_STREQ(parseEndpoint("[::1]:80")->host, "::1");
  EXPECT_STREQ(parseEndpoint("h:0")->port, "0");
  EXPECT_STREQ(parseEndpoint("h:10203")->port, "10203");
  for (const char* bad :
       {"", "host", "host:", ":1", "host:70000", "host:-1", "host:1x", "::1:80", "[]:1"}) {
    const auto endpoint = parseEndpoint(bad);
    ASSERT_FALSE(endpoint) << bad;
    EXPECT_NE(strstr(endpoint.error().text(), "HOST:PORT"), nullptr);
  }
}

}  // namespace
}  // namespace tidepool
