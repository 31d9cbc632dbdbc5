// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of the remote-memory protocol. Each layout is written down once, as a
// sequence of Writer or Reader calls in the order of the bytes; hosts are little-endian (checked).
#include "runtime/transport/wire.h"

#include "runtime/transport/fields.h"

namespace tidepool::wire {
namespace {

tl::unexpected<Error> corrupt(const char* what, uint64_t value) {
  return fail(ErrorCode::kCorrupt, "malformed frame: %s (0x%llx)", what,
              static_cast<unsigned long long>(value));
}

bool pageAligned(uint64_t value) { return value % kPageSize == 0; }

/// READ, WRITE and DISCARD: a run of whole pages that does not wrap around.
Status checkRun(const Request& request, uint32_t payload, uint32_t limit) {
  if (!pageAligned(request.offset)) return corrupt("offset not page-aligned", request.offset);
  if (request.length == 0 || !pageAligned(request.length)) {
    return corrupt("length not whole pages", request.length);
  }
  if (request.length > limit) return corrupt("length beyond the limit", request.length);
  if (request.offset > UINT64_MAX - request.length) {
    return corrupt("offset overflows", request.offset);
  }
  if (request.payload != payload) return corrupt("payload length", request.payload);
  if (request.count != 0 || request.row_bytes != 0) {
    return corrupt("row fields in a run request", request.count);
  }
  return {};
}

/// READ_ROWS and WRITE_ROWS: `offsets` follow, and `data` bytes after them for a write.
Status checkRows(const Request& request) {
  if (request.offset != 0) return corrupt("offset in a row request", request.offset);
  if (request.count == 0 || request.count > kMaxRows) return corrupt("row count", request.count);
  if (request.row_bytes < kMinRowBytes || request.row_bytes > kMaxRowBytes) {
    return corrupt("row size", request.row_bytes);
  }
  const uint64_t data = uint64_t{request.count} * request.row_bytes;
  if (data > kMaxData) return corrupt("rows beyond the limit", data);
  if (request.length != data) return corrupt("length of rows", request.length);
  const uint64_t offsets = uint64_t{request.count} * kRowOffsetSize;
  const uint64_t expected = request.opcode == Opcode::kWriteRows ? offsets + data : offsets;
  if (request.payload != expected) return corrupt("payload length", request.payload);
  return {};
}

Status checkEmpty(const Request& request) {
  if ((request.offset | request.length | request.payload | request.count | request.row_bytes) !=
      0) {
    return corrupt("fields in a request that has none", request.length);
  }
  return {};
}

Status checkRequest(const Request& request) {
  constexpr uint32_t kMaxDiscard = UINT32_MAX - kPageSize + 1;
  switch (request.opcode) {
    case Opcode::kPing:
    case Opcode::kStat:
    case Opcode::kOpenLane:
    case Opcode::kCloseLane:
      return checkEmpty(request);
    case Opcode::kRead:
      return checkRun(request, 0, kMaxData);
    case Opcode::kWrite:
      return checkRun(request, request.length, kMaxData);
    case Opcode::kDiscard:
      return checkRun(request, 0, kMaxDiscard);
    case Opcode::kReadRows:
    case Opcode::kWriteRows:
      return checkRows(request);
  }
  return corrupt("unknown opcode", static_cast<uint8_t>(request.opcode));
}

}  // namespace

bool sameToken(const Token& left, const Token& right) {
  // No early exit: the time taken says nothing about how many bytes were right.
  uint8_t difference = 0;
  for (size_t i = 0; i < left.bytes.size(); ++i) difference |= left.bytes[i] ^ right.bytes[i];
  return difference == 0;
}

void encode(const ClientHello& hello, std::span<std::byte, kHelloSize> out) {
  Writer writer(out);
  writer.put(kHelloMagic);
  writer.put(hello.version);
  writer.put(hello.kind);
  writer.put(hello.features);
  writer.put(hello.region);
  writer.put(hello.token);
  writer.put(hello.epoch.value());
  writer.put(hello.size.value());
  writer.put(hello.replaces);
  writer.putZeros(4);
}

void encode(const ServerHello& hello, std::span<std::byte, kHelloSize> out) {
  Writer writer(out);
  writer.put(kHelloMagic);
  writer.put(hello.version);
  writer.put(hello.status);
  writer.put(hello.features);
  writer.put(hello.region);
  writer.put(hello.token);
  writer.put(hello.epoch.value());
  writer.put(hello.capacity.value());
  writer.put(hello.max_data);
  writer.put(hello.connection);
}

void encode(const Request& request, std::span<std::byte, kRequestSize> out) {
  Writer writer(out);
  writer.put(kRequestMagic);
  writer.put(request.opcode);
  writer.putZeros(3);
  writer.put(request.tag);
  writer.put(request.epoch.value());
  writer.put(request.offset);
  writer.put(request.length);
  writer.put(request.payload);
  writer.put(request.count);
  writer.put(request.row_bytes);
}

void encode(const Response& response, std::span<std::byte, kResponseSize> out) {
  Writer writer(out);
  writer.put(kResponseMagic);
  writer.put(response.status);
  writer.putZeros(2);
  writer.put(response.tag);
  writer.put(response.payload);
  writer.putZeros(4);
}

void encode(const Stat& stat, std::span<std::byte, kStatSize> out) {
  Writer writer(out);
  writer.put(stat.region_capacity);
  writer.put(stat.server_capacity);
  writer.put(stat.server_free);
  writer.put(stat.regions);
  writer.put(stat.connections);
  writer.put(stat.requests);
}

void encode(const LaneOffer& offer, std::span<std::byte, kLaneOfferSize> out) {
  Writer writer(out);
  writer.put(offer.ticket);
  writer.put(offer.address);
  writer.put(offer.length);
  writer.put(offer.rkey);
  writer.put(offer.port);
  writer.putZeros(10);
}

Result<ClientHello> decodeClientHello(std::span<const std::byte, kHelloSize> in) {
  Reader reader(in);
  const auto magic = reader.get<uint64_t>();
  if (magic != kHelloMagic) return corrupt("not a Tidepool handshake", magic);
  ClientHello hello;
  hello.version = reader.get<uint16_t>();
  if (hello.version != kVersion) {
    return fail(ErrorCode::kUnsupported, "protocol version %u; this side speaks %u", hello.version,
                kVersion);
  }
  const auto kind = reader.get<uint16_t>();
  if (kind != 1 && kind != 2) return corrupt("kind of handshake", kind);
  hello.kind = static_cast<HelloKind>(kind);
  hello.features = reader.get<uint32_t>();
  hello.region = reader.get<uint64_t>();
  hello.token = reader.get<Token>();
  hello.epoch = Epoch(reader.get<uint64_t>());
  hello.size = Bytes(reader.get<uint64_t>());
  hello.replaces = reader.get<uint32_t>();
  if (hello.replaces != 0 && hello.kind != HelloKind::kAttach) {
    return corrupt("a new region's connection that replaces one", hello.replaces);
  }
  const auto reserved = reader.get<uint32_t>();
  if (reserved != 0) return corrupt("reserved bytes in the handshake", reserved);
  return hello;
}

Result<ServerHello> decodeServerHello(std::span<const std::byte, kHelloSize> in) {
  Reader reader(in);
  const auto magic = reader.get<uint64_t>();
  if (magic != kHelloMagic) return corrupt("not a Tidepool memory server", magic);
  ServerHello hello;
  hello.version = reader.get<uint16_t>();
  if (hello.version != kVersion) {
    return fail(ErrorCode::kUnsupported, "protocol version %u; this side speaks %u", hello.version,
                kVersion);
  }
  hello.status = reader.get<uint16_t>();
  hello.features = reader.get<uint32_t>();
  hello.region = reader.get<uint64_t>();
  hello.token = reader.get<Token>();
  hello.epoch = Epoch(reader.get<uint64_t>());
  hello.capacity = Bytes(reader.get<uint64_t>());
  hello.max_data = reader.get<uint32_t>();
  hello.connection = reader.get<uint32_t>();
  if (hello.status == 0 && hello.max_data < kPageSize) return corrupt("limit", hello.max_data);
  return hello;
}

Result<Request> decodeRequest(std::span<const std::byte, kRequestSize> in) {
  Reader reader(in);
  const auto magic = reader.get<uint32_t>();
  if (magic != kRequestMagic) return corrupt("bad magic of a request", magic);
  Request request;
  request.opcode = static_cast<Opcode>(reader.get<uint8_t>());
  const auto reserved = reader.get<std::array<uint8_t, 3>>();
  if ((reserved[0] | reserved[1] | reserved[2]) != 0) return corrupt("reserved bytes", reserved[0]);
  request.tag = reader.get<uint64_t>();
  request.epoch = Epoch(reader.get<uint64_t>());
  request.offset = reader.get<uint64_t>();
  request.length = reader.get<uint32_t>();
  request.payload = reader.get<uint32_t>();
  request.count = reader.get<uint32_t>();
  request.row_bytes = reader.get<uint32_t>();
  TP_TRY(checkRequest(request));
  return request;
}

Result<Response> decodeResponse(std::span<const std::byte, kResponseSize> in) {
  Reader reader(in);
  const auto magic = reader.get<uint32_t>();
  if (magic != kResponseMagic) return corrupt("bad magic of a response", magic);
  Response response;
  response.status = reader.get<uint16_t>();
  const auto reserved = reader.get<uint16_t>();
  response.tag = reader.get<uint64_t>();
  response.payload = reader.get<uint32_t>();
  if (reserved != 0 || reader.get<uint32_t>() != 0) return corrupt("reserved bytes", reserved);
  if (response.payload > kMaxData) return corrupt("length beyond the limit", response.payload);
  if (response.status != 0 && response.payload != 0) {
    return corrupt("payload of an error", response.payload);
  }
  return response;
}

Stat decodeStat(std::span<const std::byte, kStatSize> in) {
  Reader reader(in);
  Stat stat;
  stat.region_capacity = reader.get<uint64_t>();
  stat.server_capacity = reader.get<uint64_t>();
  stat.server_free = reader.get<uint64_t>();
  stat.regions = reader.get<uint64_t>();
  stat.connections = reader.get<uint64_t>();
  stat.requests = reader.get<uint64_t>();
  return stat;
}

Result<LaneOffer> decodeLaneOffer(std::span<const std::byte, kLaneOfferSize> in) {
  Reader reader(in);
  LaneOffer offer;
  offer.ticket = reader.get<Token>();
  offer.address = reader.get<uint64_t>();
  offer.length = reader.get<uint64_t>();
  offer.rkey = reader.get<uint32_t>();
  offer.port = reader.get<uint16_t>();
  const auto reserved = reader.get<uint16_t>();
  if (reserved != 0 || reader.get<uint64_t>() != 0) {
    return corrupt("reserved bytes in the offer of a lane", reserved);
  }
  if (offer.port == 0) return corrupt("port of a lane", offer.port);
  if (offer.length == 0 || !pageAligned(offer.length) ||
      offer.address > UINT64_MAX - offer.length) {
    return corrupt("extent of a lane", offer.length);
  }
  return offer;
}

ErrorCode errorOf(uint16_t status) {
  const auto last = static_cast<uint16_t>(ErrorCode::kInternal);
  if (status == 0 || status > last) return ErrorCode::kCorrupt;
  return static_cast<ErrorCode>(status);
}

}  // namespace tidepool::wire
