// SPDX-License-Identifier: Apache-2.0
// The remote-memory protocol's frames, and their encoding as pure functions over byte spans.
// Little-endian, fixed layout; docs/wire-format.md is the byte-level description and changes with
// this file. Stateless and thread-safe. Offsets and lengths are bytes within one region.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace tidepool::wire {

inline constexpr uint64_t kHelloMagic = 0x4c4f4f5045444954;  // "TIDEPOOL"
inline constexpr uint32_t kRequestMagic = 0x31515054;        // "TPQ1"
inline constexpr uint32_t kResponseMagic = 0x31525054;       // "TPR1"
inline constexpr uint16_t kVersion = 1;

inline constexpr size_t kHelloSize = 64;
inline constexpr size_t kRequestSize = 48;
inline constexpr size_t kResponseSize = 24;
inline constexpr size_t kStatSize = 48;
inline constexpr size_t kRowOffsetSize = 8;
inline constexpr size_t kLaneOfferSize = 48;

/// Feature bits of the handshake.
/// READ and WRITE may go past the server's processor: OPEN_LANE and CLOSE_LANE are understood.
inline constexpr uint32_t kFeatureOneSided = 1u << 0;
/// A connection has a number, and a later one may take its place.
inline constexpr uint32_t kFeatureReplace = 1u << 1;

/// Bytes of region data one READ, WRITE, READ_ROWS or WRITE_ROWS may carry. Four granules: large
/// enough that a header costs nothing, small enough that one request never holds others up long.
inline constexpr uint32_t kMaxData = 8 * kMiB;
inline constexpr uint32_t kMaxRows = 4096;
inline constexpr uint32_t kMinRowBytes = 16;
inline constexpr uint32_t kMaxRowBytes = 4096;

enum class Opcode : uint8_t {
  kPing = 1,
  kStat = 2,
  kRead = 3,
  kWrite = 4,
  kReadRows = 5,
  kWriteRows = 6,
  kDiscard = 7,
  kOpenLane = 8,  // with kFeatureOneSided only, as the next
  kCloseLane = 9,
};

/// What a client wants from the handshake.
enum class HelloKind : uint16_t {
  kCreate = 1,  // a private region, freed soon after its last connection has gone
  kAttach = 2,  // a further connection to a region whose id and token are known
};

/// The secret that opens a region. Compared in constant time.
struct Token {
  std::array<uint8_t, 16> bytes{};
};
bool sameToken(const Token& left, const Token& right);

struct ClientHello {
  uint16_t version = kVersion;
  HelloKind kind = HelloKind::kCreate;
  uint32_t features = 0;
  uint64_t region = 0;  // kAttach
  Token token{};        // kAttach
  Epoch epoch{};        // kAttach
  Bytes size{};         // kCreate; 0: all that is free
  /// kAttach, to a server with kFeatureReplace: the number of the connection that this one takes
  /// the place of. Once it is answered nothing that was sent on that one takes effect any more. 0:
  /// none.
  uint32_t replaces = 0;
};

struct ServerHello {
  uint16_t version = kVersion;
  /// 0, or an ErrorCode; the server closes the connection after an error.
  uint16_t status = 0;
  uint32_t features = 0;
  uint64_t region = 0;
  Token token{};
  Epoch epoch{};
  /// The region's size; with status kNoSpace the bytes that are free.
  Bytes capacity;
  uint32_t max_data = kMaxData;
  uint32_t connection = 0;  // its number; 0 without kFeatureReplace
};

struct Request {
  Opcode opcode = Opcode::kPing;
  uint64_t tag = 0;
  Epoch epoch{};
  uint64_t offset = 0;     // READ, WRITE, DISCARD: page-aligned
  uint32_t length = 0;     // region bytes: READ, WRITE, DISCARD in whole pages; rows: count x row
  uint32_t payload = 0;    // bytes that follow this header
  uint32_t count = 0;      // rows
  uint32_t row_bytes = 0;  // rows
};

struct Response {
  uint16_t status = 0;  // 0, or an ErrorCode
  uint64_t tag = 0;
  uint32_t payload = 0;  // bytes that follow this header; 0 when status is an error
};

/// The answer to STAT. Bytes, but for the counts.
struct Stat {
  uint64_t region_capacity = 0;
  uint64_t server_capacity = 0;
  uint64_t server_free = 0;
  uint64_t regions = 0;
  uint64_t connections = 0;
  uint64_t requests = 0;
};

/// The answer to OPEN_LANE: where RDMA connects to, and what it may then reach by READ and WRITE.
struct LaneOffer {
  Token ticket{};        // shown once, in the private data of the RDMA connection
  uint64_t address = 0;  // of the region's first byte, as the server's device knows it
  uint64_t length = 0;   // bytes from there; less than the region after it has grown
  uint32_t rkey = 0;
  uint16_t port = 0;  // of the RDMA connection manager, at the address that the client reached
};

void encode(const ClientHello& hello, std::span<std::byte, kHelloSize> out);
void encode(const ServerHello& hello, std::span<std::byte, kHelloSize> out);
void encode(const Request& request, std::span<std::byte, kRequestSize> out);
void encode(const Response& response, std::span<std::byte, kResponseSize> out);
void encode(const Stat& stat, std::span<std::byte, kStatSize> out);
void encode(const LaneOffer& offer, std::span<std::byte, kLaneOfferSize> out);

// Decoding checks everything that can be checked without knowing the region: magics, reserved
// bytes, known codes, limits, alignment, overflow, and that the lengths agree with one another.
// Errors: kCorrupt, naming the field; kUnsupported for another protocol version.
Result<ClientHello> decodeClientHello(std::span<const std::byte, kHelloSize> in);
Result<ServerHello> decodeServerHello(std::span<const std::byte, kHelloSize> in);
Result<Request> decodeRequest(std::span<const std::byte, kRequestSize> in);
Result<Response> decodeResponse(std::span<const std::byte, kResponseSize> in);
Stat decodeStat(std::span<const std::byte, kStatSize> in);
Result<LaneOffer> decodeLaneOffer(std::span<const std::byte, kLaneOfferSize> in);

/// The ErrorCode of a status; kCorrupt for numbers that name none. Never call with 0.
ErrorCode errorOf(uint16_t status);

}  // namespace tidepool::wire
