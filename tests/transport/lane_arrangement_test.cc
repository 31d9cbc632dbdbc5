// SPDX-License-Identifier: Apache-2.0
// How a client comes to a lane, against a server by script: each reason why there is none, which of
// them are odd, and which end the connection.
#include "runtime/transport/lane_arrangement.h"

#include <array>
#include <cstring>

#include "runtime/transport/handshake.h"
#include "tests/transport/fake_peer.h"

namespace tidepool {
namespace {

constexpr Nanoseconds kLong(20'000'000'000);

class NoPageLane final : public PageLane {
 public:
  bool add(const LanePiece&) override { return false; }
  Status post(Ends) override { return {}; }
  Result<uint64_t> reap() override { return 0; }
  bool lookout() override { return false; }
  int fd() const override { return -1; }
};

class Source final : public LaneSource {
 public:
  bool connects = true;
  int asked = 0;

  Status usable() override { return {}; }
  Result<std::unique_ptr<PageLane>> connect(const Endpoint& server, const wire::LaneOffer&,
                                            LaneLoad load, Nanoseconds) override {
    ++asked;
    EXPECT_STREQ(server.host, testHost().c_str());
    EXPECT_EQ(load, LaneLoad::kManyShort);
    if (!connects) return fail(ErrorCode::kUnreachable, "no way there");
    return std::unique_ptr<PageLane>(std::make_unique<NoPageLane>());
  }
};

class LaneArrangement : public testing::Test {
 protected:
  /// With a server that answers the question for a lane so, and closes the connection then.
  Result<ArrangedLane> arrange(uint16_t status, std::span<const std::byte> payload,
                               const Status& usable = {}) {
    ScriptedServer server([&](int socket) {
      std::array<std::byte, wire::kRequestSize> request;
      if (recv(socket, request.data(), request.size(), MSG_WAITALL) != wire::kRequestSize) return;
      const auto asked = wire::decodeRequest(request);
      EXPECT_TRUE(asked && asked->opcode == wire::Opcode::kOpenLane && asked->epoch == Epoch(7));
      std::array<std::byte, wire::kResponseSize> header;
      wire::encode({.status = status, .payload = static_cast<uint32_t>(payload.size())}, header);
      EXPECT_EQ(send(socket, header.data(), header.size(), MSG_NOSIGNAL), ssize_t{header.size()});
      EXPECT_EQ(send(socket, payload.data(), payload.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(payload.size()));
    });
    auto connection = connectTcp(server.endpoint(), kLong);
    EXPECT_TRUE(connection);
    // What comes before is the handshake's.
    wire::ClientHello hello;
    EXPECT_TRUE(shakeHands(**connection, server.endpoint(), hello, kLong));
    return arrangeLane(**connection, source_, usable,
                       {.region = region_, .load = LaneLoad::kManyShort, .timeout = kLong});
  }
  static std::array<std::byte, wire::kLaneOfferSize> offer() {
    std::array<std::byte, wire::kLaneOfferSize> bytes;
    wire::encode(wire::LaneOffer{.length = 3 * kPageSize, .port = 1}, bytes);
    return bytes;
  }
  static void expectNone(const Result<ArrangedLane>& arranged, bool odd, const char* why) {
    ASSERT_TRUE(arranged) << arranged.error().text();
    ASSERT_FALSE(arranged->lane);
    EXPECT_EQ(arranged->lane.error().odd, odd);
    EXPECT_NE(strstr(arranged->lane.error().why.text(), why), nullptr)
        << arranged->lane.error().why.text();
  }

  Source source_;
  wire::ServerHello region_{
      .features = wire::kFeatureOneSided, .epoch = Epoch(7), .capacity = Bytes()};
};

TEST_F(LaneArrangement, ALaneReachesWhatTheServerOffers) {
  const auto arranged = arrange(0, offer());
  ASSERT_TRUE(arranged && arranged->lane);
  EXPECT_EQ(arranged->reaches, 3 * kPageSize);
  EXPECT_EQ(source_.asked, 1);
}

TEST_F(LaneArrangement, AnEndThatCannotIsNotOdd) {
  expectNone(arrange(0, offer(), fail(ErrorCode::kUnsupported, "none here")), false, "none here");
  region_.features = 0;
  expectNone(arrange(0, offer()), false, "no RDMA there");
  region_.features = wire::kFeatureOneSided;
  expectNone(arrange(static_cast<uint16_t>(ErrorCode::kUnsupported), {}), false, "unsupported");
  EXPECT_EQ(source_.asked, 0);
}

TEST_F(LaneArrangement, ItIsOddThatWhoCanDoesNot) {
  expectNone(arrange(static_cast<uint16_t>(ErrorCode::kNoMemory), {}), true, "no-memory");
  source_.connects = false;
  expectNone(arrange(0, offer()), true, "no way there");
}

TEST_F(LaneArrangement, AnAnswerThatIsNoneEndsTheConnection) {
  const auto whole = offer();
  const auto arranged = arrange(0, std::span<const std::byte>(whole).first(8));
  ASSERT_FALSE(arranged);
  EXPECT_EQ(arranged.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace tidepool
