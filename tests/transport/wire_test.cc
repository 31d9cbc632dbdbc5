// SPDX-License-Identifier: Apache-2.0
// The wire format: what is encoded is decoded, the documented bytes are the bytes, and every kind
// of malformed frame is told apart from a good one.
#include "runtime/transport/wire.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

namespace tidepool::wire {
namespace {

using RequestBytes = std::array<std::byte, kRequestSize>;

RequestBytes bytesOf(const Request& request) {
  RequestBytes bytes;
  encode(request, bytes);
  return bytes;
}

Request validRows(Opcode opcode) {
  Request request;
  request.row_bytes = *rc::gen::inRange<uint32_t>(kMinRowBytes, kMaxRowBytes + 1);
  const uint32_t most = std::min(kMaxRows, kMaxData / request.row_bytes);
  request.count = *rc::gen::inRange<uint32_t>(1, most + 1);
  request.length = request.count * request.row_bytes;
  request.payload = request.count * static_cast<uint32_t>(kRowOffsetSize);
  if (opcode == Opcode::kWriteRows) request.payload += request.length;
  return request;
}

/// Any request that the protocol allows.
rc::Gen<Request> validRequest() {
  return rc::gen::exec([] {
    const auto opcode = static_cast<Opcode>(*rc::gen::inRange(1, 8));
    Request request;
    if (opcode == Opcode::kRead || opcode == Opcode::kWrite || opcode == Opcode::kDiscard) {
      request.offset = *rc::gen::inRange<uint64_t>(0, 1ull << 40) * kPageSize;
      request.length = *rc::gen::inRange<uint32_t>(1, 2049) * static_cast<uint32_t>(kPageSize);
      if (opcode == Opcode::kWrite) request.payload = request.length;
    } else if (opcode == Opcode::kReadRows || opcode == Opcode::kWriteRows) {
      request = validRows(opcode);
    }
    request.opcode = opcode;
    request.tag = *rc::gen::arbitrary<uint64_t>();
    request.epoch = Epoch(*rc::gen::arbitrary<uint64_t>());
    return request;
  });
}

RC_GTEST_PROP(WireFormat, RequestsComeBack, ()) {
  const Request request = *validRequest();
  const auto decoded = decodeRequest(bytesOf(request));
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(bytesOf(*decoded) == bytesOf(request));
}

RC_GTEST_PROP(WireFormat, AnyBytesAreRefusedOrDecodeToThemselves, ()) {
  // Half random bytes, half a good frame with one byte changed: those reach deeper.
  RequestBytes bytes = bytesOf(*validRequest());
  if (*rc::gen::arbitrary<bool>()) {
    for (auto& byte : bytes) byte = static_cast<std::byte>(*rc::gen::arbitrary<uint8_t>());
  } else {
    bytes[*rc::gen::inRange<size_t>(0, kRequestSize)] =
        static_cast<std::byte>(*rc::gen::arbitrary<uint8_t>());
  }
  const auto decoded = decodeRequest(bytes);
  if (decoded) {
    RC_ASSERT(bytesOf(*decoded) == bytes);
    RC_ASSERT(decoded->opcode == Opcode::kDiscard || decoded->length <= kMaxData);
    RC_ASSERT(decoded->payload <= kMaxData + kMaxRows * kRowOffsetSize);
  } else {
    RC_ASSERT(decoded.error().code() == ErrorCode::kCorrupt);
  }
}

RC_GTEST_PROP(WireFormat, ResponsesComeBack, (uint64_t tag, uint32_t size, uint16_t status)) {
  const Response response{
      .status = status, .tag = tag, .payload = status == 0 ? size % kMaxData : 0};
  std::array<std::byte, kResponseSize> bytes;
  encode(response, bytes);
  const auto decoded = decodeResponse(bytes);
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(decoded->status == response.status);
  RC_ASSERT(decoded->tag == response.tag);
  RC_ASSERT(decoded->payload == response.payload);
}

RC_GTEST_PROP(WireFormat, HandshakesComeBack,
              (uint64_t region, uint64_t epoch, uint64_t size, uint32_t number)) {
  ClientHello hello;
  hello.kind = *rc::gen::arbitrary<bool>() ? HelloKind::kCreate : HelloKind::kAttach;
  hello.region = region;
  for (auto& byte : hello.token.bytes) byte = *rc::gen::arbitrary<uint8_t>();
  hello.epoch = Epoch(epoch);
  hello.size = Bytes(size);
  if (hello.kind == HelloKind::kAttach) hello.replaces = number;
  std::array<std::byte, kHelloSize> bytes;
  encode(hello, bytes);
  const auto decoded = decodeClientHello(bytes);
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(decoded->kind == hello.kind && decoded->region == region);
  RC_ASSERT(decoded->epoch == hello.epoch && decoded->size == hello.size);
  RC_ASSERT(decoded->replaces == hello.replaces);
  RC_ASSERT(sameToken(decoded->token, hello.token));

  ServerHello answer;
  answer.region = region;
  answer.token = hello.token;
  answer.epoch = Epoch(epoch);
  answer.capacity = Bytes(size);
  answer.connection = number;
  encode(answer, bytes);
  const auto back = decodeServerHello(bytes);
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->region == region && back->epoch == answer.epoch);
  RC_ASSERT(back->capacity == answer.capacity && back->max_data == kMaxData);
  RC_ASSERT(back->connection == number);
}

TEST(WireFormat, ANewRegionsConnectionReplacesNone) {
  std::array<std::byte, kHelloSize> bytes;
  ClientHello hello;
  hello.replaces = 1;
  encode(hello, bytes);
  EXPECT_EQ(decodeClientHello(bytes).error().code(), ErrorCode::kCorrupt);
}

TEST(WireFormat, StatComesBack) {
  const Stat stat{1, 2, 3, 4, 5, 6};
  std::array<std::byte, kStatSize> bytes;
  encode(stat, bytes);
  const Stat back = decodeStat(bytes);
  EXPECT_EQ(memcmp(&back, &stat, sizeof stat), 0);
}

using OfferBytes = std::array<std::byte, kLaneOfferSize>;

/// The layout of docs/wire-format.md, section 4, byte for byte.
TEST(WireFormat, OffersOfLanesAreAsDocumented) {
  LaneOffer offer;
  for (size_t i = 0; i < offer.ticket.bytes.size(); ++i) {
    offer.ticket.bytes[i] = static_cast<uint8_t>(0xa0 + i);
  }
  offer.address = 0x7f12'3456'7000;
  offer.length = 0x20'0000;
  offer.rkey = 0x01020304;
  offer.port = 7777;
  const uint8_t expected[kLaneOfferSize] = {
      0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,  // ticket
      0xac, 0xad, 0xae, 0xaf, 0x00, 0x70, 0x56, 0x34, 0x12, 0x7f, 0,    0,     // address
      0,    0,    0x20, 0,    0,    0,    0,    0,    4,    3,    2,    1,     // length, rkey
      0x61, 0x1e, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0};    // port, zero
  OfferBytes bytes;
  encode(offer, bytes);
  EXPECT_EQ(memcmp(bytes.data(), expected, sizeof expected), 0);
  const auto back = decodeLaneOffer(bytes);
  ASSERT_TRUE(back);
  EXPECT_TRUE(sameToken(back->ticket, offer.ticket));
  EXPECT_EQ(back->address, offer.address);
  EXPECT_EQ(back->length, offer.length);
  EXPECT_EQ(back->rkey, offer.rkey);
  EXPECT_EQ(back->port, offer.port);
}

TEST(WireFormat, ImpossibleOffersOfLanesAreRefused) {
  const auto refused = [](LaneOffer offer) {
    OfferBytes bytes;
    encode(offer, bytes);
    const auto back = decodeLaneOffer(bytes);
    return !back && back.error().code() == ErrorCode::kCorrupt;
  };
  const LaneOffer good = {.ticket = {}, .address = 4096, .length = 4096, .rkey = 1, .port = 1};
  EXPECT_FALSE(refused(good));
  LaneOffer bad = good;
  bad.port = 0;
  EXPECT_TRUE(refused(bad));
  for (const uint64_t length : {uint64_t{0}, uint64_t{100}, UINT64_MAX, UINT64_MAX - 4095}) {
    bad = good;
    bad.length = length;
    EXPECT_TRUE(refused(bad)) << length;
  }
  OfferBytes bytes;
  encode(good, bytes);
  for (size_t at = kLaneOfferSize - 10; at < kLaneOfferSize; ++at) {
    OfferBytes changed = bytes;
    changed[at] = std::byte{1};
    EXPECT_FALSE(decodeLaneOffer(changed)) << at;
  }
}

/// The example of docs/wire-format.md, section 6, byte for byte.
TEST(WireFormat, TheDocumentedBytesAreTheBytes) {
  const char request[] =
      "TPQ1\3\0\0\0\7\0\0\0\0\0\0\0"
      "\1\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0"
      "\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0";
  static_assert(sizeof request == kRequestSize);  // the last zero ends the literal
  const auto encoded = bytesOf(
      {.opcode = Opcode::kRead, .tag = 7, .epoch = Epoch(1), .offset = 8192, .length = 4096});
  EXPECT_EQ(memcmp(encoded.data(), request, kRequestSize), 0);
  const char response[] = "TPR1\0\0\0\0\7\0\0\0\0\0\0\0\0\x10\0\0\0\0\0";
  static_assert(sizeof response == kResponseSize);
  std::array<std::byte, kResponseSize> answer;
  encode(Response{.status = 0, .tag = 7, .payload = 4096}, answer);
  EXPECT_EQ(memcmp(answer.data(), response, kResponseSize), 0);
  std::array<std::byte, kHelloSize> hello;
  encode(ClientHello{}, hello);
  EXPECT_EQ(memcmp(hello.data(), "TIDEPOOL\1\0\1\0", 12), 0);
}

void makeRows(Request& request, uint32_t count, uint32_t row) {
  request.opcode = Opcode::kReadRows;
  request.offset = 0;
  request.count = count;
  request.row_bytes = row;
  request.length = count * row;
  request.payload = count * static_cast<uint32_t>(kRowOffsetSize);
}

struct BadRequest {
  const char* name;
  void (*spoil)(Request&);
};

class Malformed : public testing::TestWithParam<BadRequest> {};

TEST_P(Malformed, IsRefused) {
  Request request{
      .opcode = Opcode::kRead, .tag = 1, .epoch = Epoch(1), .offset = 4096, .length = 8192};
  ASSERT_TRUE(decodeRequest(bytesOf(request)));
  GetParam().spoil(request);
  const auto decoded = decodeRequest(bytesOf(request));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(
    WireFormat, Malformed,
    testing::Values(
        BadRequest{"opcode0", [](Request& r) { r.opcode = static_cast<Opcode>(0); }},
        BadRequest{"opcode8", [](Request& r) { r.opcode = static_cast<Opcode>(8); }},
        BadRequest{"opcode255", [](Request& r) { r.opcode = static_cast<Opcode>(255); }},
        BadRequest{"offsetUnaligned", [](Request& r) { r.offset += 1; }},
        BadRequest{"lengthUnaligned", [](Request& r) { r.length += 8; }},
        BadRequest{"lengthZero", [](Request& r) { r.length = 0; }},
        BadRequest{"lengthBeyondLimit", [](Request& r) { r.length = kMaxData + kPageSize; }},
        BadRequest{"lengthHuge", [](Request& r) { r.length = 0xfffff000; }},
        BadRequest{"overflow", [](Request& r) { r.offset = ~uint64_t{0} - kPageSize + 1; }},
        BadRequest{"payloadOfRead", [](Request& r) { r.payload = 4096; }},
        BadRequest{"rowsInRead", [](Request& r) { r.count = 1; }},
        BadRequest{"writeWithoutPayload", [](Request& r) { r.opcode = Opcode::kWrite; }},
        BadRequest{"pingWithLength", [](Request& r) { r.opcode = Opcode::kPing; }},
        BadRequest{"rowsTooSmall", [](Request& r) { makeRows(r, 4, kMinRowBytes - 1); }},
        BadRequest{"rowsTooLarge", [](Request& r) { makeRows(r, 4, kMaxRowBytes + 1); }},
        BadRequest{"rowsNone", [](Request& r) { makeRows(r, 0, 64); }},
        BadRequest{"rowsTooMany", [](Request& r) { makeRows(r, kMaxRows + 1, 64); }},
        BadRequest{"rowsTooMuch", [](Request& r) { makeRows(r, 4096, 4096); }},
        BadRequest{"rowsOverflow", [](Request& r) { makeRows(r, 0x80000000, 64); }},
        BadRequest{"rowsLengthLies", [](Request& r) { makeRows(r, 4, 64), ++r.length; }},
        BadRequest{"rowsPayloadLies", [](Request& r) { makeRows(r, 4, 64), ++r.payload; }},
        BadRequest{"rowsWithOffset", [](Request& r) { makeRows(r, 4, 64), r.offset = 4096; }}),
    [](const auto& named) { return named.param.name; });

TEST(WireFormat, ReservedBytesAreChecked) {
  const auto good = bytesOf({.opcode = Opcode::kPing});
  ASSERT_TRUE(decodeRequest(good));
  for (size_t at : {0u, 1u, 2u, 3u, 5u, 6u, 7u}) {
    auto bytes = good;
    bytes[at] ^= std::byte{0x80};
    EXPECT_FALSE(decodeRequest(bytes)) << at;
  }
  std::array<std::byte, kResponseSize> response;
  encode(Response{}, response);
  for (size_t at : {0u, 3u, 6u, 7u, 20u, 23u}) {
    auto bytes = response;
    bytes[at] ^= std::byte{0x80};
    EXPECT_FALSE(decodeResponse(bytes)) << at;
  }
  encode(Response{.status = 5, .tag = 1, .payload = 8}, response);
  EXPECT_FALSE(decodeResponse(response)) << "an error with a payload";
}

TEST(WireFormat, AnotherVersionIsToldFromRubbish) {
  std::array<std::byte, kHelloSize> bytes;
  ClientHello hello;
  hello.version = 2;
  encode(hello, bytes);
  EXPECT_EQ(decodeClientHello(bytes).error().code(), ErrorCode::kUnsupported);
  bytes[0] = std::byte{'t'};
  EXPECT_EQ(decodeClientHello(bytes).error().code(), ErrorCode::kCorrupt);
}

TEST(WireFormat, TokensDifferInAnyByte) {
  Token token;
  for (size_t i = 0; i < token.bytes.size(); ++i) token.bytes[i] = static_cast<uint8_t>(i);
  EXPECT_TRUE(sameToken(token, token));
  for (size_t i = 0; i < token.bytes.size(); ++i) {
    Token other = token;
    other.bytes[i] ^= 1;
    EXPECT_FALSE(sameToken(token, other));
  }
}

TEST(WireFormat, StatusesAreErrorCodes) {
  EXPECT_EQ(errorOf(8), ErrorCode::kStaleEpoch);
  EXPECT_EQ(errorOf(14), ErrorCode::kInternal);
  EXPECT_EQ(errorOf(15), ErrorCode::kCorrupt);
  EXPECT_EQ(errorOf(65535), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace tidepool::wire
