// SPDX-License-Identifier: Apache-2.0
// What a program and its host's agent say to each other over a Unix socket that keeps messages
// apart (SOCK_SEQPACKET), and its encoding as pure functions. Fixed layouts, little-endian;
// docs/fabric-agent.md is the byte-level description and changes with this file. Stateless and
// thread-safe, no allocation. Sizes and offsets are bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool::agent_wire {

inline constexpr uint32_t kRequestMagic = 0x31475054;  // "TPG1"
inline constexpr uint32_t kNoticeMagic = 0x314e5054;   // "TPN1"
inline constexpr uint16_t kVersion = 2;

inline constexpr size_t kRequestSize = 64;
inline constexpr size_t kNoticeHeadSize = 48;
inline constexpr size_t kPieceSize = 152;
/// Of one region. Regions in more pieces are not handed out.
inline constexpr uint16_t kMaxPieces = 256;
/// Descriptors that come with one message: one for each device.
inline constexpr uint16_t kMaxFiles = 64;
inline constexpr uint16_t kMaxText = 2048;
inline constexpr size_t kMaxNotice = kNoticeHeadSize + kMaxPieces * kPieceSize + kMaxText;

inline constexpr const char* kDefaultSocket = "/run/tidepool/agent.sock";

/// Program to agent.
enum class RequestKind : uint16_t {
  kHello = 1,    // first of all; its tag names the client, whenever it connects
  kAsk = 2,      // for a region
  kReclaim = 3,  // after the agent was away: this region is still in use here
  kReturn = 4,   // nothing of this region is in use here any more
  kLeft = 5,     // of a region that is being drained: what has still to be moved; no answer
  kStatus = 6,   // how the agent is
  kAll = 7,      // after its reclaims: this client has no other region; no answer
};

/// Agent to program.
enum class NoticeKind : uint16_t {
  kWelcome = 1,   // to kHello; the text names the host
  kRegion = 2,    // to kAsk
  kKept = 3,      // to kReclaim
  kReturned = 4,  // to kReturn
  kRefused = 5,   // to any of them: status and text
  kDrain = 6,     // unasked: move off this region and return it
  kResume = 7,    // unasked: no need any more
  kGone = 8,      // unasked: bytes from `size` on are lost
  kStatus = 9,    // to kStatus; the text is JSON
  kLease = 10,    // unasked: how long regions may be used in place
};

/// The tag of a hello that names nobody.
inline constexpr uint64_t kNameless = UINT64_MAX;

/// Which kind of memory a program asks for.
enum class Want : uint8_t { kAny = 0, kDirect = 1, kFetch = 2 };

/// Why what has still to be moved off a region stays where it is.
enum class Waits : uint8_t {
  kNot = 0,           // it moves
  kRoom = 1,          // no room elsewhere
  kRoomOrDevice = 2,  // that, or devices may hold its pages (io_uring, O_DIRECT)
  kCheckpoint = 3,    // a checkpoint reads it
  kTable = 4,         // its table is being made or restored
};

struct Request {
  RequestKind kind = RequestKind::kHello;
  uint64_t tag = 0;     // comes back in the answer
  uint64_t region = 0;  // kReclaim, kReturn, kLeft
  Epoch epoch{};        // likewise
  Bytes size{};         // kAsk: wanted, 0: what stands ready; kLeft: to be moved yet
  Want want = Want::kAny;
  Waits waits = Waits::kNot;  // kLeft
};

enum class PieceKind : uint8_t { kFile = 1, kServer = 2 };

/// A run of a region's bytes that lies in one place. A region's pieces make it up in their order.
struct Piece {
  PieceKind kind = PieceKind::kFile;
  uint32_t file = 0;    // kFile: which of the message's descriptors
  uint64_t offset = 0;  // kFile: within the file; kServer: within the server's region
  Bytes length;
  uint64_t region = 0;  // kServer: as the server knows it
  wire::Token token{};  // kServer: opens it; a secret
  Endpoint endpoint;    // kServer
};

struct Notice {
  NoticeKind kind = NoticeKind::kWelcome;
  uint64_t tag = 0;  // of the request; 0: unasked
  uint64_t region = 0;
  Epoch epoch{};
  Bytes size{};
  uint16_t status = 0;  // kRefused, kGone: an ErrorCode
  uint16_t pieces = 0;
  uint16_t files = 0;
  std::string_view text{};                 // points into what was decoded
  std::span<const std::byte> pieces_at{};  // likewise: kPieceSize each
  // kLease: until this moment of CLOCK_BOOTTIME, which is at most so far away. In the message they
  // stand in the place of region and size.
  Nanoseconds until{}, length{};
};

void encode(const Request& request, std::span<std::byte, kRequestSize> out);
/// The head alone, of a notice with `notice.pieces` pieces and `notice.text`, which follow it.
void encode(const Notice& notice, std::span<std::byte, kNoticeHeadSize> out);
void encode(const Piece& piece, std::span<std::byte, kPieceSize> out);

// Decoding takes one whole message and checks everything: length, magic, reserved bytes, known
// kinds, and that fields which do not belong to the kind are zero. Errors: kCorrupt, naming the
// field; kUnsupported for another version.
Result<Request> decodeRequest(std::span<const std::byte> in);
Result<Notice> decodeNotice(std::span<const std::byte> in);
/// `files`: how many descriptors the message has. Errors: kCorrupt.
Result<Piece> decodePiece(std::span<const std::byte, kPieceSize> in, uint16_t files);

/// "ask", "reclaim" ... for logs.
const char* nameOf(RequestKind kind);

}  // namespace tidepool::agent_wire
