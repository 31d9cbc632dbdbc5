// SPDX-License-Identifier: Apache-2.0
// Every frame of the three protocols, decoded: memory servers', agents', control ports'. The first
// byte says which. What is taken has to come out again as it went in.
#include "fabricmgr/device/control_wire.h"
#include "runtime/transport/agent_wire.h"
#include "runtime/transport/wire.h"
#include "tests/fuzz/fuzz.h"

namespace tidepool::fuzz {
namespace {

namespace control = fabric::control;

/// Decodes the front of `input`; what is good has to encode to the same bytes.
template <size_t kSize, typename Decode>
void roundTrip(std::string_view input, Decode decode) {
  if (input.size() < kSize) return;
  const auto bytes = std::span<const std::byte, kSize>(bytesOf(input).first(kSize));
  const auto value = decode(bytes);
  if (value) TP_CHECK(encoded<kSize>(*value) == input.substr(0, kSize));
}

void tryNotice(std::string_view input) {
  const auto notice = agent_wire::decodeNotice(bytesOf(input));
  if (!notice) return;
  const size_t pieces = notice->pieces_at.size() / agent_wire::kPieceSize;
  TP_CHECK_OP(pieces, ==, notice->pieces);
  for (size_t i = 0; i < pieces; ++i) {
    const auto bytes = notice->pieces_at.subspan(i * agent_wire::kPieceSize);
    roundTrip<agent_wire::kPieceSize>(textOf(bytes.first(agent_wire::kPieceSize)), [&](auto one) {
      return agent_wire::decodePiece(one, notice->files);
    });
  }
  TP_CHECK(encoded<agent_wire::kNoticeHeadSize>(*notice) ==
           input.substr(0, agent_wire::kNoticeHeadSize));
}

void tryControl(std::string_view input) {
  if (const auto hello = control::decodeHello(input)) {
    TP_CHECK_OP(control::encode(*hello).size(), ==, control::kHelloSize);
  }
  if (const auto request = control::decodeRequest(input)) {
    TP_CHECK_OP(control::encode(*request).size(), ==, input.size());
  }
  if (const auto answer = control::decodeAnswer(input)) {
    TP_CHECK_OP(control::encode(*answer).size(), ==, input.size());
  }
  if (const auto payload = control::payloadAfter(input, control::kRequestMagic)) {
    TP_CHECK_OP(*payload, <=, control::kMaxPayload);
  }
}

void tryReports(std::string_view input) {
  const auto reports = control::decodeReports(input, fabric::DeviceId(1));
  if (reports) TP_CHECK(control::encode(*reports) == input);
}

std::vector<fabric::GrantReport> someReports() {
  fabric::GrantReport granted;
  granted.grant.region = fabric::RegionId(3);
  granted.grant.epoch = Epoch(2);
  granted.grant.extents = {{fabric::DeviceId(1), 4096, Bytes(8192)}};
  fabric::GrantReport scrubbed = granted;
  scrubbed.grant.region = fabric::RegionId(4);
  scrubbed.grant.state = fabric::GrantState::kScrubbed;
  scrubbed.evidence.bytes = Bytes(8192);
  scrubbed.evidence.digest = "0123456789abcdef";
  return {granted, scrubbed};
}

std::string someNotice() {
  const agent_wire::Piece file = {.length = Bytes(kGranuleSize), .endpoint = {}};
  agent_wire::Piece server = {.kind = agent_wire::PieceKind::kServer,
                              .length = Bytes(kGranuleSize),
                              .region = 5,
                              .endpoint = *parseEndpoint("host:7777")};
  server.token.bytes.fill(7);
  const agent_wire::Notice notice = {.kind = agent_wire::NoticeKind::kRegion,
                                     .tag = 1,
                                     .region = 9,
                                     .size = Bytes(2 * kGranuleSize),
                                     .pieces = 2,
                                     .files = 1,
                                     .text = "host"};
  return encoded<agent_wire::kNoticeHeadSize>(notice) + encoded<agent_wire::kPieceSize>(file) +
         encoded<agent_wire::kPieceSize>(server) + "host";
}

}  // namespace

std::vector<std::string> seeds() {
  using std::string;
  control::Request attach = {.opcode = control::Opcode::kAttach, .region = fabric::RegionId(3)};
  attach.extents = someReports()[0].grant.extents;
  const control::Request lead = {
      .opcode = control::Opcode::kLead,
      .leader = {"01234567-89ab-4cde-8f01-23456789abcd", fabric::Term(1), 2, {}}};
  return {
      string(1, 0) + encoded<wire::kHelloSize>(wire::ClientHello{.size = Bytes(kMiB)}),
      string(1, 1) + encoded<wire::kHelloSize>(wire::ServerHello{.capacity = Bytes(kMiB)}),
      string(1, 2) + encoded<wire::kRequestSize>(
                         wire::Request{.opcode = wire::Opcode::kRead, .length = kPageSize}),
      string(1, 3) + encoded<wire::kResponseSize>(wire::Response{.tag = 4, .payload = kPageSize}),
      string(1, 4) + encoded<wire::kLaneOfferSize>(wire::LaneOffer{.length = kMiB, .port = 4791}),
      string(1, 5) + encoded<agent_wire::kRequestSize>(agent_wire::Request{.tag = 1}),
      string(1, 6) + someNotice(),
      string(1, 7) + control::encode(control::Hello{}),
      string(1, 7) + control::encode(attach),
      string(1, 7) + control::encode(lead),
      string(1, 7) + control::encode(control::Answer{.value = kMiB, .payload = "text"}),
      string(1, 8) + control::encode(someReports()),
  };
}

void tryInput(std::string_view input) {
  switch (takeByte(&input)) {
    case 0:
      return roundTrip<wire::kHelloSize>(input, wire::decodeClientHello);
    case 1:
      return roundTrip<wire::kHelloSize>(input, wire::decodeServerHello);
    case 2:
      return roundTrip<wire::kRequestSize>(input, wire::decodeRequest);
    case 3:
      return roundTrip<wire::kResponseSize>(input, wire::decodeResponse);
    case 4:
      return roundTrip<wire::kLaneOfferSize>(input, wire::decodeLaneOffer);
    case 5:
      if (input.size() == agent_wire::kRequestSize) {
        roundTrip<agent_wire::kRequestSize>(input, agent_wire::decodeRequest);
      }
      return;
    case 6:
      return tryNotice(input);
    case 7:
      return tryControl(input);
    default:
      return tryReports(input);
  }
}

}  // namespace tidepool::fuzz
