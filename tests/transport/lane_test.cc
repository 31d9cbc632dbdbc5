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
#include "tests/transport/lane_house.h"

namespace tidepool {
namespace {

class Lanes : public testing::TestWithParam<Way> {
 protected:
  House house_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Transport, Lanes, testing::ValuesIn(waysHere()), nameOfWay);

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

/// Longer than all that a lane takes at a time.
TEST_P(Lanes, RunsOfEverySizeComeBack) {
  wire::ClientHello hello;
  hello.size = Bytes(wire::kMaxData);
  auto opened = house_.connect(hello);
  ASSERT_TRUE(opened) << opened.error().text();
  RemoteClient& client = **opened;
  for (const size_t pages : {1u, 15u, 16u, 17u, 255u, 512u, 2048u}) {
    const auto bytes = pattern(pages * kPageSize, pages);
    ASSERT_EQ(finish(client, client.submitWrite(1, Bytes(), bytes)), kGood);
    std::vector<std::byte> back(bytes.size());
    ASSERT_EQ(finish(client, client.submitRead(2, Bytes(), back)), kGood);
    EXPECT_TRUE(back == bytes) << pages;
  }
  EXPECT_EQ(client.pagesBy(), house_.expected());
}

TEST_P(Lanes, WhoSleepsRightAfterSendingIsWoken) {
  auto client = house_.create();
  std::vector<std::byte> page(kPageSize);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client->submitRead(1, Bytes(), page));
    ASSERT_TRUE(client->flush());
    FetchCompletion done;
    do {
      pollfd waiting = {client->fd(), client->events(), 0};
      ASSERT_EQ(poll(&waiting, 1, 10'000), 1);
    } while (client->poll({&done, 1}) == 0);
  }
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
  for (const Way way : {Way::kDouble, Way::kDoubleRows}) {
    House house(way);
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
}

TEST(TransportCensus, CountsHowPagesOfAllConnectionsTravel) {
  House house(Way::kDouble);
  house.lanes.pieces_until_failure = 1;
  TransportCensus census;
  const auto open = [&] {
    wire::ClientHello hello;
    hello.size = Bytes(kPages * kPageSize);
    auto client = RemoteClient::connect(loopback(house.server().port()), hello,
                                        {.timeout = kLong,
                                         .transport = Transport::kAuto,
                                         .lanes = &house.lanes,
                                         .census = &census});
    EXPECT_TRUE(client) << client.error().text();
    return std::move(*client);
  };
  EXPECT_EQ(census.ways(), PageWays::kNone);
  auto first = open();
  auto second = open();
  EXPECT_EQ(census.ways(), PageWays::kVerbs);
  EXPECT_EQ(census.firstNote(), nullptr);
  std::vector<std::byte> pages(4 * kPageSize);
  for (uint64_t page = 0; page < 4; ++page) {
    const auto part = std::span(pages).subspan(page * kPageSize, kPageSize);
    ASSERT_EQ(finish(*first, first->submitRead(1, Bytes(page * kPageSize), part)), kGood);
  }
  EXPECT_EQ(census.ways(), PageWays::kBoth);
  EXPECT_STREQ(census.firstNote(), "the lane broke");
  second.reset();
  EXPECT_EQ(census.ways(), PageWays::kTcp);
  first.reset();
  EXPECT_EQ(census.ways(), PageWays::kNone);
}

TEST(TransportCensus, AParentsConnectionsDoNotCountInAChild) {
  TransportCensus census;
  {
    TransportCensus::Place of_parent;
    of_parent.take(&census, PageWays::kVerbs);
    census.forget();
    EXPECT_EQ(census.ways(), PageWays::kNone);
    TransportCensus::Place of_child;
    of_child.take(&census, PageWays::kTcp);
    EXPECT_EQ(census.ways(), PageWays::kTcp);
    of_parent.change(PageWays::kTcp);  // counted anew, and so left again
  }
  EXPECT_EQ(census.ways(), PageWays::kNone);
}

RC_GTEST_PROP(LaneProperties, AnyRoomAndAnyFaultKeepTheModel, (uint64_t seed)) {
  House house(*rc::gen::element(Way::kDouble, Way::kDoubleRows));
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
