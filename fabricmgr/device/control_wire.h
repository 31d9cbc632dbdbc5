// SPDX-License-Identifier: Apache-2.0
// The control protocol between the fabric manager and a memory server: frames that both sides seal
// with a shared key, and their encoding. docs/wire-format.md, section 9, is the byte-level
// description. Stateless but for Seal, which belongs to one connection and thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabricmgr/device/device_driver.h"
#include "fabricmgr/model/records.h"
#include "runtime/base/result.h"
#include "runtime/transport/connection.h"
#include "runtime/transport/wire.h"

namespace tidepool::fabric::control {

enum class Opcode : uint8_t {
  kCapacity = 1,  // how much the server lends, and its data port
  kAttach = 2,
  kRevoke = 3,
  kScrub = 4,   // one piece of a region
  kVerify = 5,  // the next piece of a region
  kForget = 6,
  kInspect = 7,
  kLead = 8,     // the manager says who it is: before anything else
  kRelease = 9,  // the server is no fabric's any more
};

inline constexpr uint32_t kHelloMagic = 0x31485054;    // "TPH1"
inline constexpr uint32_t kRequestMagic = 0x31435054;  // "TPC1"
inline constexpr uint32_t kAnswerMagic = 0x31415054;   // "TPA1"
inline constexpr uint16_t kVersion = 2;
inline constexpr size_t kHelloSize = 32;
inline constexpr size_t kHeaderSize = 48;
inline constexpr size_t kMacSize = 32;
inline constexpr uint32_t kMaxPayload = 64 * kMiB;
/// Of the first frame from each side: a request without extents, an error's text.
inline constexpr uint32_t kMaxFirstPayload = 4 * kKiB;
/// Bytes that one SCRUB or VERIFY takes on: a few milliseconds.
inline constexpr uint64_t kPiece = 8 * kMiB;
/// Set in the ids by which clients know managed regions: servers number private ones from 1.
inline constexpr uint64_t kManaged = 1ull << 63;

using Nonce = std::array<uint8_t, 16>;

/// Server to client, at once: sealed frames of this connection are bound to the nonce.
struct Hello {
  uint16_t version = kVersion;
  Nonce nonce{};
};

struct Request {
  Opcode opcode = Opcode::kCapacity;
  RegionId region = {};
  Epoch epoch{};
  uint64_t offset = 0;  // SCRUB, VERIFY: the piece, within the region
  uint64_t length = 0;
  std::vector<Extent> extents = {};  // ATTACH, REVOKE; the device's id is not sent
  Leader leader = {};                // LEAD
};

struct Answer {
  Opcode opcode = Opcode::kCapacity;  // of the request
  RegionId region;                    // likewise
  ErrorCode status{};                 // 0: done
  /// CAPACITY: bytes; VERIFY: bytes that were not zero; LEAD that is refused: the leader's term
  uint64_t value = 0;
  uint16_t data_port = 0;
  std::string
      payload;  // INSPECT: reports; VERIFY of the last piece: the digest; errors: their text
};

std::string encode(const Hello& hello);
Result<Hello> decodeHello(std::string_view bytes);
std::string encode(const Request& request);
std::string encode(const Answer& answer);
/// The payload that follows a header. Errors: kCorrupt, naming the field.
Result<uint32_t> payloadAfter(std::string_view header, uint32_t magic);
Result<Request> decodeRequest(std::string_view frame);
Result<Answer> decodeAnswer(std::string_view frame);
std::string encode(const std::vector<GrantReport>& reports);
Result<std::vector<GrantReport>> decodeReports(std::string_view bytes, DeviceId device);

/// The secret that opens a managed region of a fabric in one epoch: HMAC-SHA-256 of all three under
/// the shared key, cut to what the data protocol's handshake has room for.
wire::Token regionToken(std::string_view key, std::string_view fabric, RegionId region,
                        Epoch epoch);

/// Seals the frames of one connection: HMAC-SHA-256 over direction, nonce, number of the frame and
/// the frame, so that none can be made, changed, repeated or taken from another connection. Times
/// are deadlines on kMonotonicClock, for whole frames.
class Seal {
 public:
  enum class Side : uint8_t { kClient, kServer };
  Seal(std::string key, const Nonce& nonce, Side side)
      : key_(std::move(key)), nonce_(nonce), side_(side) {}
  /// The next frame of this side, with its seal.
  std::string seal(std::string frame);
  /// Bytes that the other side's next frame has with its seal, by its header. Errors: kCorrupt.
  Result<size_t> sizeOf(std::string_view header, uint32_t magic) const;
  /// The other side's next frame, without the seal that it came with. Errors: kPermission for a
  /// wrong seal (another key).
  Result<std::string> open(std::string sealed);
  /// seal(), and sends it. Errors: those of the connection, kTimedOut.
  Status send(Connection& connection, std::string frame, Nanoseconds deadline);
  /// Receives the other side's next frame, which begins with `magic`, and opens it. Errors:
  /// kPermission, kCorrupt, those of the connection, kTimedOut.
  Result<std::string> receive(Connection& connection, uint32_t magic, Nanoseconds deadline);

 private:
  Digest mac(Side from, uint64_t number, std::string_view frame) const;

  const std::string key_;
  const Nonce nonce_;
  const Side side_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

/// The server's greeting. Errors: kCorrupt, kUnsupported, those of the connection, kTimedOut.
Result<Hello> receiveHello(Connection& connection, Nanoseconds deadline);

/// The key in a file: 16 to 1024 bytes, a final newline not counted. Errors: kNotFound, kPermission
/// (also when others may read it), kInvalidArgument.
Result<std::string> readKey(const std::string& path);

}  // namespace tidepool::fabric::control
