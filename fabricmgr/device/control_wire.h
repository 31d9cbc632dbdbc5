// SPDX-License-Identifier: Apache-2.0
// The control protocol between the fabric manager and a memory server: frames over TLS, and their
// encoding. docs/wire-format.md, section 9, is the byte-level description. Stateless.
#pragma once

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
inline constexpr uint16_t kVersion = 3;
inline constexpr size_t kHelloSize = 16;
inline constexpr size_t kHeaderSize = 48;
inline constexpr uint32_t kMaxPayload = 64 * kMiB;
/// Bytes of the key that makes the tokens of a server's regions.
inline constexpr size_t kTokenKeySize = 32;
/// Bytes that one SCRUB or VERIFY takes on: a few milliseconds.
inline constexpr uint64_t kPiece = 8 * kMiB;
/// Set in the ids by which clients know managed regions: servers number private ones from 1.
inline constexpr uint64_t kManaged = 1ull << 63;

/// Server to client, as soon as it knows that this is a manager.
struct Hello {
  uint16_t version = kVersion;
};

/// Whose certificates the two sides show: `fabricmgr ca issue manager`, `... memserver`. A memory
/// server's is for one device, by name.
inline constexpr char kManagerUrn[] = "urn:tidepool:manager:";
inline constexpr char kMemserverUrn[] = "urn:tidepool:memserver:";

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
  RegionId region{};                  // likewise
  ErrorCode status{};                 // 0: done
  /// CAPACITY: bytes; VERIFY: bytes that were not zero; LEAD that is refused: the leader's term
  uint64_t value = 0;
  uint16_t data_port = 0;
  std::string payload{};  // CAPACITY: the key of its tokens; INSPECT: reports; VERIFY of the last
                          // piece: the digest; errors: their text
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
/// the server's key, cut to what the data protocol's handshake has room for.
wire::Token regionToken(std::string_view key, std::string_view fabric, RegionId region,
                        Epoch epoch);

/// The other side's next frame, which begins with `magic`, header and payload. Errors: kCorrupt,
/// those of the connection, kTimedOut: `deadline`, on kMonotonicClock, is for all of it.
Result<std::string> receiveFrame(Connection& connection, uint32_t magic, Nanoseconds deadline);
Status sendFrame(Connection& connection, const std::string& frame, Nanoseconds deadline);

/// The server's greeting. Errors: kCorrupt, kUnsupported, those of the connection, kTimedOut.
Result<Hello> receiveHello(Connection& connection, Nanoseconds deadline);

}  // namespace tidepool::fabric::control
