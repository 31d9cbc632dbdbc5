// SPDX-License-Identifier: Apache-2.0
// The protocol's promises whichever way pages take: over TCP, through a lane's double, and by RDMA
// verbs in machines that have it (TIDEPOOL_TEST_RDMA is the address of their RDMA device). Order,
// bytes, fences, loss, and going back to TCP.
#include <gtest/gtest.h>
#include <poll.h>

#include <random>

#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "fabricmgr/memserver/server.h"
#include "runtime/transport/client.h"
#include "runtime/transport/verbs/adaptive_spin.h"
#include "runtime/transport/verbs/cm_private_data.h"
#include "tests/transport/fake_peer.h"
#include "tests/transport/lane_double.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong = Nanoseconds(20'000'000'000);
constexpr ErrorCode kGood = ErrorCode{};
constexpr size_t kPages = 64;

enum class Way : uint8_t { kTcp, kDouble, kVerbs };

/// A memory server, and clients that reach its pages in one of the ways.
class House {
 public:
  explicit House(Way way) : way_(way) {
    const char* const address = getenv("TIDEPOOL_TEST_RDMA");
    host_ = way == Way::kVerbs ? address : "127.0.0.1";
    memserver::ServerOptions options;
    options.listen = host_ + ":0";
    options.size = Bytes(4 * kPages * kPageSize);
    if (way == Way::kVerbs) options.transport = Transport::kVerbs;
    if (way == Way::kDouble) options.one_sided = &lanes;
    auto server = memserver::Server::start(options);
    EXPECT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    EXPECT_EQ(server_->noRdma(), "");
  }

  Result<std::unique_ptr<RemoteClient>> connect(const wire::ClientHello& hello) {
    ClientOptions options = {.timeout = kLong};
    if (way_ != Way::kTcp) options.transport = Transport::kVerbs;
    if (way_ == Way::kDouble) options.lanes = &lanes;
    return RemoteClient::connect(
        *parseEndpoint((host_ + ":" + std::to_string(server_->port())).c_str()), hello, options);
  }
  std::unique_ptr<RemoteClient> create() {
    wire::ClientHello hello;
    hello.size = Bytes(kPages * kPageSize);
    auto client = connect(hello);
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  }
  memserver::Server& server() { return *server_; }
  /// How pages should travel.
  Transport expected() const { return way_ == Way::kTcp ? Transport::kTcp : Transport::kVerbs; }

  LaneDouble lanes;

 private:
  const Way way_;
  std::string host_;
  std::unique_ptr<memserver::Server> server_;
};

wire::ClientHello attachTo(const wire::ServerHello& region) {
  wire::ClientHello hello;
  hello.kind = wire::HelloKind::kAttach;
  hello.region = region.region;
  hello.token = region.token;
  hello.epoch = region.epoch;
  return hello;
}

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

ErrorCode finish(RemoteClient& client, const Status& queued) {
  if (!queued) return queued.error().code();
  return client.wait().error;
}

/// A client, and what the region should hold. Every request is remembered with what its answer
/// should be at the time it was made.
class Model {
 public:
  explicit Model(RemoteClient& client) : client_(client), bytes_(kPages * kPageSize) {}

  void doAnything(std::mt19937_64& random) {
    const uint64_t first = random() % kPages;
    // Now and then longer than a lane takes in one piece.
    const uint64_t most = random() % 4 == 0 ? kPages - first : std::min(kPages - first, size_t{3});
    const uint64_t offset = first * kPageSize;
    const uint64_t size = (1 + random() % most) * kPageSize;
    switch (random() % 8) {
      case 0:
        return ping();
      case 1:
        return discard(offset, size);
      case 2:
        return rows(random);
      case 3:
      case 4:
        return write(offset, pattern(size, random()));
      default:
        return read(offset, size);
    }
  }
  /// Sees that everything in flight ends once, in order and as it should.
  void settle() {
    while (client_.inFlight() > 0) takeSome();
    EXPECT_EQ(ended_, requests_.size());
  }
  size_t requests() const { return requests_.size(); }

 private:
  struct Request {
    std::vector<std::byte> memory;    // read to, or written from
    std::vector<std::byte> expected;  // what a read should bring
    std::vector<uint64_t> offsets;
  };

  Request& next() { return *requests_.emplace_back(std::make_unique<Request>()); }
  uint64_t tag() const { return requests_.size() - 1; }
  template <typename Submit>
  void submit(Submit&& queue) {
    for (;;) {
      const Status queued = queue();
      if (queued) break;
      ASSERT_EQ(queued.error().code(), ErrorCode::kNoSpace) << queued.error().text();
      takeSome();
    }
  }
  void takeSome() {
    FetchCompletion done[5];
    const size_t count = client_.poll(done);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(done[i].tag, ended_);
      EXPECT_EQ(done[i].error, kGood);
      const Request& request = *requests_.at(ended_++);
      EXPECT_TRUE(request.expected.empty() || request.expected == request.memory) << ended_ - 1;
    }
    if (count > 0 || client_.inFlight() == 0) return;
    pollfd waiting = {client_.fd(), client_.events(), 0};
    poll(&waiting, 1, static_cast<int>(client_.timeToDeadline().value() / 1'000'000 + 1));
  }

  void ping() {
    next();
    submit([&] { return client_.submitPing(tag()); });
  }
  void discard(uint64_t offset, uint64_t size) {
    next();
    submit([&] { return client_.submitDiscard(tag(), Bytes(offset), Bytes(size)); });
    std::fill_n(bytes_.begin() + static_cast<long>(offset), size, std::byte{});
  }
  void write(uint64_t offset, std::vector<std::byte> bytes) {
    Request& request = next();
    request.memory = std::move(bytes);
    submit([&] { return client_.submitWrite(tag(), Bytes(offset), request.memory); });
    std::copy(request.memory.begin(), request.memory.end(),
              bytes_.begin() + static_cast<long>(offset));
  }
  void read(uint64_t offset, uint64_t size) {
    Request& request = next();
    request.memory.resize(size, std::byte{0xcc});
    request.expected.assign(bytes_.begin() + static_cast<long>(offset),
                            bytes_.begin() + static_cast<long>(offset + size));
    submit([&] { return client_.submitRead(tag(), Bytes(offset), request.memory); });
  }
  void rows(std::mt19937_64& random) {
    constexpr uint64_t kRow = 96;
    Request& request = next();
    const uint64_t count = 1 + random() % 20;
    for (uint64_t i = 0; i < count; ++i) {
      request.offsets.push_back(random() % (kPages * kPageSize - kRow));
    }
    request.memory = pattern(count * kRow, random());
    const bool writes = random() % 2 == 0;
    if (writes) {
      submit([&] {
        return client_.submitWriteRows(tag(), request.offsets, Bytes(kRow), request.memory);
      });
    } else {
      submit([&] {
        return client_.submitReadRows(tag(), request.offsets, Bytes(kRow), request.memory);
      });
    }
    for (uint64_t i = 0; i < count; ++i) {
      const auto at = bytes_.begin() + static_cast<long>(request.offsets[i]);
      if (writes) {
        std::copy_n(request.memory.begin() + static_cast<long>(i * kRow), kRow, at);
      } else {
        request.expected.insert(request.expected.end(), at, at + kRow);
      }
    }
  }

  RemoteClient& client_;
  std::vector<std::byte> bytes_;
  std::vector<std::unique_ptr<Request>> requests_;  // whose memory stays where it is
  uint64_t ended_ = 0;
};

class Lanes : public testing::TestWithParam<Way> {
 protected:
  House house_{GetParam()};
};

std::vector<Way> ways() {
  std::vector<Way> all = {Way::kTcp, Way::kDouble};
  if (getenv("TIDEPOOL_TEST_RDMA") != nullptr) all.push_back(Way::kVerbs);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Transport, Lanes, testing::ValuesIn(ways()), [](const auto& way) {
  return way.param == Way::kTcp ? "tcp" : way.param == Way::kDouble ? "double" : "verbs";
});

TEST_P(Lanes, PagesTravelAsTheyShould) {
  auto client = house_.create();
  EXPECT_EQ(client->pagesBy(), house_.expected());
  const auto bytes = pattern(kPages * kPageSize, 1);
  ASSERT_EQ(finish(*client, client->submitWrite(1, Bytes(), bytes)), kGood);
  std::vector<std::byte> back(bytes.size());
  ASSERT_EQ(finish(*client, client->submitRead(2, Bytes(), back)), kGood);
  EXPECT_TRUE(back == bytes);
  EXPECT_EQ(client->pagesBy(), house_.expected());
}

TEST_P(Lanes, FreshRegionsReadAsZeros) {
  auto client = house_.create();
  std::vector<std::byte> back(kPages * kPageSize, std::byte{0xcc});
  ASSERT_EQ(finish(*client, client->submitRead(1, Bytes(), back)), kGood);
  EXPECT_EQ(std::count(back.begin(), back.end(), std::byte{}), std::ssize(back));
}

TEST_P(Lanes, RequestsOfAllKindsTakeEffectInTheirOrder) {
  auto client = house_.create();
  std::mt19937_64 random(7);
  Model model(*client);
  for (int i = 0; i < 600; ++i) model.doAnything(random);
  model.settle();
  EXPECT_EQ(client->pagesBy(), house_.expected());
}

TEST_P(Lanes, AFullRingPushesBack) {
  auto client = house_.create();
  std::vector<std::byte> page(kPageSize);
  size_t queued = 0;
  while (client->submitRead(queued, Bytes(), page)) ++queued;
  EXPECT_EQ(queued, 1024u);
  for (size_t i = 0; i < queued; ++i) EXPECT_EQ(client->wait().tag, i);
}

TEST_P(Lanes, WhatIsOutsideIsRefusedAndTheRestGoesOn) {
  auto client = house_.create();
  std::vector<std::byte> pages(2 * kPageSize);
  const Bytes last((kPages - 1) * kPageSize);
  EXPECT_EQ(finish(*client, client->submitRead(1, last, pages)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(finish(*client, client->submitWrite(1, last, pages)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(finish(*client, client->submitRead(1, last, std::span(pages).first(kPageSize))), kGood);
  EXPECT_EQ(client->pagesBy(), house_.expected());
}

TEST_P(Lanes, SeveralClientsSeeOneRegion) {
  auto writer = house_.create();
  auto reader = house_.connect(attachTo(writer->region()));
  ASSERT_TRUE(reader) << reader.error().text();
  const auto bytes = pattern(4 * kPageSize, 3);
  ASSERT_EQ(finish(*writer, writer->submitWrite(1, Bytes(kPageSize), bytes)), kGood);
  std::vector<std::byte> back(bytes.size());
  ASSERT_EQ(finish(**reader, (*reader)->submitRead(1, Bytes(kPageSize), back)), kGood);
  EXPECT_TRUE(back == bytes);
  // The writer goes; the reader's access is its own.
  writer.reset();
  ASSERT_EQ(finish(**reader, (*reader)->submitRead(1, Bytes(kPageSize), back)), kGood);
  EXPECT_TRUE(back == bytes);
}

TEST_P(Lanes, AFenceShutsOldEpochsOutWhateverTheirWay) {
  auto client = house_.create();
  const auto bytes = pattern(kPageSize, 4);
  ASSERT_EQ(finish(*client, client->submitWrite(1, Bytes(), bytes)), kGood);
  auto hello = attachTo(client->region());
  ASSERT_TRUE(house_.server().fence(hello.region, hello.epoch + 1));
  const auto other = pattern(kPageSize, 5);
  EXPECT_EQ(finish(*client, client->submitWrite(2, Bytes(), other)), ErrorCode::kStaleEpoch);
  std::vector<std::byte> back(kPageSize, std::byte{0xcc});
  EXPECT_EQ(finish(*client, client->submitRead(3, Bytes(), back)), ErrorCode::kStaleEpoch);
  EXPECT_TRUE(back == std::vector<std::byte>(kPageSize, std::byte{0xcc}));
  hello.epoch = hello.epoch + 1;
  auto next = house_.connect(hello);
  ASSERT_TRUE(next) << next.error().text();
  EXPECT_EQ((*next)->pagesBy(), house_.expected());
  ASSERT_EQ(finish(**next, (*next)->submitRead(1, Bytes(), back)), kGood);
  EXPECT_TRUE(back == bytes);
}

TEST_P(Lanes, WhatHasBeenReadBeforeTheServerWentIsRightAndTheRestFails) {
  auto client = house_.create();
  const auto bytes = pattern(kPages * kPageSize, 6);
  ASSERT_EQ(finish(*client, client->submitWrite(1, Bytes(), bytes)), kGood);
  std::vector<std::byte> back(bytes.size(), std::byte{0xcc});
  for (uint64_t i = 0; i < kPages; ++i) {
    ASSERT_TRUE(client->submitRead(i, Bytes(i * kPageSize), {&back[i * kPageSize], kPageSize}));
  }
  ASSERT_TRUE(client->flush());
  house_.server().stop();
  for (uint64_t i = 0; i < kPages; ++i) {
    const FetchCompletion done = client->wait();
    EXPECT_EQ(done.tag, i);
    const bool right = memcmp(&back[i * kPageSize], &bytes[i * kPageSize], kPageSize) == 0;
    EXPECT_TRUE(right || !done.ok()) << i;
  }
  EXPECT_NE(finish(*client, client->submitRead(1, Bytes(), back)), kGood);
}

/// A lane that fails after so many pieces.
class Failing : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Transport, Failing, testing::Values(0, 1, 2, 5, 17, 64, 200));

TEST_P(Failing, LanesGiveWayToTheConnectionAndNothingIsLost) {
  House house(Way::kDouble);
  house.lanes.pieces_until_failure = GetParam();
  auto client = house.create();
  EXPECT_EQ(client->pagesBy(), Transport::kVerbs);
  std::mt19937_64 random(GetParam());
  Model model(*client);
  for (int i = 0; i < 500; ++i) model.doAnything(random);
  model.settle();
  EXPECT_EQ(client->pagesBy(), Transport::kTcp);
  // The server has been told, before anything was said again.
  EXPECT_EQ(house.lanes.closed(), 1u);
}

RC_GTEST_PROP(LaneProperties, AnyRoomAndAnyFaultKeepTheModel, (uint64_t seed)) {
  House house(Way::kDouble);
  house.lanes.room = *rc::gen::inRange<size_t>(1, 40);
  house.lanes.pieces_until_failure = *rc::gen::inRange<uint64_t>(0, 400);
  auto client = house.create();
  std::mt19937_64 random(seed);
  Model model(*client);
  for (int i = 0; i < 60; ++i) model.doAnything(random);
  model.settle();
}

TEST(LaneFallback, EveryReasonLeavesPagesToTcp) {
  for (const int reason : {0, 1, 2, 3}) {
    House house(reason == 3 ? Way::kTcp : Way::kDouble);
    house.lanes.is_usable = reason != 0;
    house.lanes.gives_offers = reason != 1;
    house.lanes.connects = reason != 2;
    wire::ClientHello hello;
    hello.size = Bytes(kPages * kPageSize);
    auto client = RemoteClient::connect(
        loopback(house.server().port()), hello,
        {.timeout = kLong, .transport = Transport::kAuto, .lanes = &house.lanes});
    ASSERT_TRUE(client) << reason;
    EXPECT_EQ((*client)->pagesBy(), Transport::kTcp) << reason;
    std::mt19937_64 random(9);
    Model model(**client);
    for (int i = 0; i < 100; ++i) model.doAnything(random);
    model.settle();
    EXPECT_EQ(house.lanes.moved(), 0u) << reason;
  }
}

TEST(LaneFallback, NobodyWhoDoesNotAskGetsALane) {
  House house(Way::kDouble);
  RawClient client(house.server().port());
  wire::ClientHello hello;
  hello.size = Bytes(kPageSize);
  const auto region = client.greet(hello);
  ASSERT_TRUE(region);
  EXPECT_EQ(region->features, 0u);
  ASSERT_TRUE(client.send({.opcode = wire::Opcode::kOpenLane, .tag = 1, .epoch = region->epoch}));
  const auto answer = client.response();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, static_cast<uint16_t>(ErrorCode::kUnsupported));
  EXPECT_EQ(house.lanes.opened(), 0u);
  // Nothing to close is no error; the connection goes on.
  ASSERT_TRUE(client.send({.opcode = wire::Opcode::kCloseLane, .tag = 2, .epoch = region->epoch}));
  EXPECT_EQ(client.response()->status, 0u);
}

TEST(LaneFallback, AnOldEpochOpensNoLaneAndASecondOneEndsTheFirst) {
  House house(Way::kDouble);
  RawClient client(house.server().port());
  wire::ClientHello hello;
  hello.size = Bytes(kPageSize);
  hello.features = wire::kFeatureOneSided | 0xf0;  // what is unknown is ignored
  const auto region = client.greet(hello);
  ASSERT_TRUE(region);
  EXPECT_EQ(region->features, wire::kFeatureOneSided);
  std::array<std::byte, wire::kLaneOfferSize> offer;
  for (uint64_t tag : {1u, 2u}) {
    ASSERT_TRUE(
        client.send({.opcode = wire::Opcode::kOpenLane, .tag = tag, .epoch = region->epoch}));
    const auto answer = client.response();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->payload, wire::kLaneOfferSize);
    ASSERT_TRUE(client.receive(offer));
    EXPECT_TRUE(wire::decodeLaneOffer(offer));
  }
  EXPECT_EQ(house.lanes.opened(), 2u);
  EXPECT_EQ(house.lanes.closed(), 1u);
  ASSERT_TRUE(house.server().fence(region->region, region->epoch + 1));
  ASSERT_TRUE(client.send({.opcode = wire::Opcode::kOpenLane, .tag = 3, .epoch = region->epoch}));
  EXPECT_EQ(client.response()->status, static_cast<uint16_t>(ErrorCode::kStaleEpoch));
  EXPECT_EQ(house.lanes.opened(), 2u);
}

TEST(LaneFallback, PinnedMemoryThatIsDiscardedReadsAsZerosBothWays) {
  House house(Way::kDouble);
  auto client = house.create();
  const auto bytes = pattern(4 * kPageSize, 8);
  ASSERT_EQ(finish(*client, client->submitWrite(1, Bytes(), bytes)), kGood);
  ASSERT_EQ(finish(*client, client->submitDiscard(2, Bytes(kPageSize), Bytes(kPageSize))), kGood);
  std::vector<std::byte> back(bytes.size());
  ASSERT_EQ(finish(*client, client->submitRead(3, Bytes(), back)), kGood);
  auto expected = bytes;
  std::fill_n(expected.begin() + kPageSize, kPageSize, std::byte{});
  EXPECT_TRUE(back == expected);
}

RC_GTEST_PROP(LaneProperties, AnyOfferIsDecodedOrRefused,
              (const std::array<uint8_t, wire::kLaneOfferSize>& noise)) {
  const auto bytes = std::as_bytes(std::span(noise));
  const auto offer = wire::decodeLaneOffer(std::span<const std::byte, wire::kLaneOfferSize>(bytes));
  if (!offer) return;
  RC_ASSERT(offer->port != 0);
  RC_ASSERT(offer->length > 0 && offer->length % kPageSize == 0);
  RC_ASSERT(offer->address <= UINT64_MAX - offer->length);
}

TEST(VerbsPrivateData, OnlyTicketsAreTickets) {
  wire::Token ticket;
  for (size_t i = 0; i < ticket.bytes.size(); ++i) ticket.bytes[i] = static_cast<uint8_t>(i * 7);
  std::array<std::byte, 56> shown = {};  // what librdmacm hands over is padded
  verbs::encodeTicket(ticket, std::span(shown).first<verbs::kPrivateSize>());
  const auto back = verbs::decodeTicket(shown);
  ASSERT_TRUE(back);
  EXPECT_TRUE(wire::sameToken(*back, ticket));
  EXPECT_FALSE(verbs::decodeTicket({}));
  EXPECT_FALSE(verbs::decodeTicket(std::span(shown).first(verbs::kPrivateSize - 1)));
  shown[0] ^= std::byte{1};
  EXPECT_FALSE(verbs::decodeTicket(shown));
}

TEST(AdaptiveSpin, NeverLooksWhereProcessorsAreFew) {
  for (const int processors : {0, 1, 2}) {
    verbs::AdaptiveSpin spin(processors);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(spin.budget(), Nanoseconds(0));
      spin.note(Nanoseconds(1000));
    }
  }
}

TEST(AdaptiveSpin, LooksWhereEndsComeSoonAndStopsWhereTheyDoNot) {
  verbs::AdaptiveSpin spin(8);
  for (int i = 0; i < 100; ++i) spin.note(Nanoseconds(3000));
  EXPECT_GT(spin.budget(), Nanoseconds(3000));
  EXPECT_LT(spin.budget(), Nanoseconds(2 * verbs::AdaptiveSpin::kWorthNs));
  for (int i = 0; i < 100; ++i) spin.note(Nanoseconds(10'000'000));
  EXPECT_EQ(spin.budget(), Nanoseconds(0));
  for (int i = 0; i < 200; ++i) spin.note(Nanoseconds(3000));
  EXPECT_GT(spin.budget(), Nanoseconds(0));
}

}  // namespace
}  // namespace tidepool
