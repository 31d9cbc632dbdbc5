// SPDX-License-Identifier: Apache-2.0
// What programs and agents say: what is encoded is decoded, the documented bytes are the bytes, and
// whatever else comes is refused without a crash.
#include "runtime/transport/agent_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace tidepool::agent_wire {
namespace {

using RequestBytes = std::array<std::byte, kRequestSize>;

RequestBytes bytesOf(const Request& request) {
  RequestBytes bytes;
  encode(request, bytes);
  return bytes;
}

const Request kRequests[] = {
    {RequestKind::kHello, 1, 0, Epoch(), Bytes(), Want::kAny},
    {RequestKind::kAsk, 2, 0, Epoch(), Bytes(1 << 20), Want::kFetch},
    {RequestKind::kAsk, 3, 0, Epoch(), Bytes(), Want::kAny},
    {RequestKind::kReclaim, 4, 17, Epoch(3), Bytes(), Want::kAny},
    {RequestKind::kReturn, 5, 17, Epoch(3), Bytes(), Want::kAny},
    {RequestKind::kLeft, 0, 17, Epoch(3), Bytes(4096), Want::kAny},
    {RequestKind::kLeft, 0, 17, Epoch(3), Bytes(4096), Want::kAny, Waits::kTable},
    {RequestKind::kStatus, 6, 0, Epoch(), Bytes(), Want::kAny},
    {RequestKind::kAll, 0, 0, Epoch(), Bytes(), Want::kAny},
};

Piece serverPiece() {
  Piece piece;
  piece.kind = PieceKind::kServer;
  piece.length = Bytes(2 * kMiB);
  piece.region = (1ull << 63) | 17;
  piece.token.bytes.fill(0xab);
  strcpy(piece.endpoint.host, "10.0.0.7");
  strcpy(piece.endpoint.port, "7777");
  return piece;
}

Piece filePiece(uint32_t file) {
  Piece piece;
  piece.file = file;
  piece.offset = 4 * kMiB;
  piece.length = Bytes(2 * kMiB);
  return piece;
}

/// A whole message of the agent.
std::vector<std::byte> message(Notice notice, const std::vector<Piece>& pieces,
                               const std::string& text) {
  notice.pieces = static_cast<uint16_t>(pieces.size());
  notice.text = text;
  std::vector<std::byte> bytes(kNoticeHeadSize + pieces.size() * kPieceSize + text.size());
  const std::span<std::byte> all(bytes);
  encode(notice, all.first<kNoticeHeadSize>());
  for (size_t i = 0; i < pieces.size(); ++i) {
    encode(pieces[i], all.subspan(kNoticeHeadSize + i * kPieceSize).first<kPieceSize>());
  }
  memcpy(bytes.data() + bytes.size() - text.size(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> regionMessage() {
  Notice notice;
  notice.kind = NoticeKind::kRegion;
  notice.tag = 9;
  notice.region = 17;
  notice.epoch = Epoch(3);
  notice.size = Bytes(4 * kMiB);
  notice.files = 1;
  return message(notice, {filePiece(0), serverPiece()}, "");
}

TEST(AgentWire, RequestsComeBackAsTheyWere) {
  for (const Request& request : kRequests) {
    const auto back = decodeRequest(bytesOf(request));
    ASSERT_TRUE(back) << back.error().text();
    EXPECT_EQ(bytesOf(*back), bytesOf(request));
    EXPECT_STRNE(nameOf(request.kind), "unknown");
  }
}

TEST(AgentWire, TheBytesOfARequestAreThoseOfTheDocument) {
  const RequestBytes bytes = bytesOf({RequestKind::kLeft, 0x0102030405060708, 0x11, Epoch(0x22),
                                      Bytes(0x33), Want::kAny, Waits::kCheckpoint});
  const char expected[] =
      "TPG1\2\0\5\0"
      "\x08\7\6\5\4\3\2\1"
      "\x11\0\0\0\0\0\0\0"
      "\x22\0\0\0\0\0\0\0"
      "\x33\0\0\0\0\0\0\0"
      "\0\3";
  EXPECT_EQ(memcmp(bytes.data(), expected, sizeof expected - 1), 0);
  EXPECT_TRUE(std::all_of(bytes.begin() + 42, bytes.end(),
                          [](std::byte one) { return one == std::byte{}; }));
}

TEST(AgentWire, RegionsComeBackAsTheyWere) {
  const auto bytes = regionMessage();
  const auto notice = decodeNotice(bytes);
  ASSERT_TRUE(notice) << notice.error().text();
  EXPECT_EQ(notice->region, 17u);
  EXPECT_EQ(notice->size, Bytes(4 * kMiB));
  const auto first = decodePiece(notice->pieces_at.first<kPieceSize>(), notice->files);
  ASSERT_TRUE(first) << first.error().text();
  EXPECT_EQ(first->offset, 4 * kMiB);
  const auto second =
      decodePiece(notice->pieces_at.subspan(kPieceSize).first<kPieceSize>(), notice->files);
  ASSERT_TRUE(second) << second.error().text();
  EXPECT_STREQ(second->endpoint.host, "10.0.0.7");
  EXPECT_TRUE(wire::sameToken(second->token, serverPiece().token));
}

TEST(AgentWire, TextsComeBackAsTheyWere) {
  Notice notice;
  notice.kind = NoticeKind::kRefused;
  notice.status = static_cast<uint16_t>(ErrorCode::kNoSpace);
  const auto bytes = message(notice, {}, "no room");
  const auto back = decodeNotice(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->text, "no room");
}

TEST(AgentWire, LeasesComeBackAsTheyWere) {
  Notice notice;
  notice.kind = NoticeKind::kLease;
  notice.until = Nanoseconds(0x0102030405060708);
  notice.length = Nanoseconds(30'000'000'000);
  const auto bytes = message(notice, {}, "");
  EXPECT_EQ(memcmp(bytes.data() + 16, "\x08\7\6\5\4\3\2\1", 8), 0);
  const auto back = decodeNotice(bytes);
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(back->until, notice.until);
  EXPECT_EQ(back->length, notice.length);
  EXPECT_EQ(back->region, 0u);
  EXPECT_EQ(back->size, Bytes());
}

TEST(AgentWire, MalformedRequestsAreRefusedByName) {
  struct Case {
    size_t at;
    uint8_t value;
    const char* says;
  };
  // Each spoils a hello.
  const Case cases[] = {{0, 'X', "magic"}, {4, 1, "version"}, {6, 0, "kind"},    {6, 8, "kind"},
                        {7, 1, "kind"},    {16, 1, "region"}, {24, 1, "epoch"},  {32, 1, "size"},
                        {40, 1, "want"},   {40, 3, "want"},   {41, 1, "reason"}, {41, 5, "reason"},
                        {42, 1, "zero"},   {63, 1, "zero"}};
  for (const Case& one : cases) {
    RequestBytes bytes = bytesOf(kRequests[0]);
    bytes[one.at] = std::byte{one.value};
    const auto request = decodeRequest(bytes);
    ASSERT_FALSE(request) << one.at;
    EXPECT_NE(std::string(request.error().text()).find(one.says), std::string::npos)
        << request.error().text();
  }
  RequestBytes no_region = bytesOf(kRequests[3]);
  no_region[16] = std::byte{};
  EXPECT_FALSE(decodeRequest(no_region));
  const RequestBytes whole = bytesOf(kRequests[0]);
  for (const size_t length : {size_t{0}, size_t{1}, kRequestSize - 1}) {
    EXPECT_FALSE(decodeRequest(std::span(whole).first(length)));
  }
  const std::array<std::byte, kRequestSize + 1> longer = {};
  EXPECT_FALSE(decodeRequest(longer));
}

TEST(AgentWire, MangledMessagesAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(1);
  const auto good = regionMessage();
  for (int i = 0; i < 20'000; ++i) {
    auto bytes = good;
    for (unsigned k = 0; k <= random() % 3; ++k) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto notice = decodeNotice(bytes);
    if (!notice) continue;
    ASSERT_LE(notice->pieces_at.size() + notice->text.size() + kNoticeHeadSize, bytes.size());
    for (size_t p = 0; p < notice->pieces; ++p) {
      const auto at = notice->pieces_at.subspan(p * kPieceSize).first<kPieceSize>();
      const auto piece = decodePiece(at, notice->files);
      if (!piece) continue;
      ASSERT_NE(memchr(piece->endpoint.host, 0, sizeof piece->endpoint.host), nullptr);
      ASSERT_NE(memchr(piece->endpoint.port, 0, sizeof piece->endpoint.port), nullptr);
      if (piece->kind == PieceKind::kFile) {
        ASSERT_LT(piece->file, notice->files);
      }
    }
    RequestBytes request;
    std::copy_n(bytes.begin(), std::min(bytes.size(), request.size()), request.begin());
    (void)decodeRequest(request);
  }
}

}  // namespace
}  // namespace tidepool::agent_wire
