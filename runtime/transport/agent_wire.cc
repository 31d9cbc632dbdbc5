// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of what programs and agents say. Each layout is written down once, as a
// sequence of Writer or Reader calls in the order of the bytes.
#include "runtime/transport/agent_wire.h"

#include <utility>

#include "runtime/base/debug_check.h"
#include "runtime/transport/fields.h"

namespace tidepool::agent_wire {
namespace {

using wire::Reader;
using wire::Writer;

tl::unexpected<Error> corrupt(const char* what, uint64_t value) {
  return fail(ErrorCode::kCorrupt, "malformed message: %s (0x%llx)", what,
              static_cast<unsigned long long>(value));
}

Status checkVersion(uint16_t version) {
  if (version == kVersion) return {};
  return fail(ErrorCode::kUnsupported, "version %u of the agent's protocol is not known, only %u",
              unsigned{version}, unsigned{kVersion});
}

bool allZero(Reader* reader, size_t count) {
  uint8_t any = 0;
  for (size_t i = 0; i < count; ++i) any |= reader->get<uint8_t>();
  return any == 0;
}

/// Fields that do not belong to the kind of request have to be zero.
Status checkFields(const Request& request) {
  const bool on_region = request.kind == RequestKind::kReclaim ||
                         request.kind == RequestKind::kReturn || request.kind == RequestKind::kLeft;
  if (on_region != (request.region != 0)) return corrupt("region", request.region);
  if (!on_region && request.epoch != Epoch()) return corrupt("epoch", request.epoch.value());
  const bool sized = request.kind == RequestKind::kAsk || request.kind == RequestKind::kLeft;
  if (!sized && request.size != Bytes()) return corrupt("size", request.size.value());
  if (request.kind != RequestKind::kAsk && request.want != Want::kAny) {
    return corrupt("want", static_cast<uint64_t>(request.want));
  }
  if (request.kind != RequestKind::kLeft && request.waits != Waits::kNot) {
    return corrupt("reason", static_cast<uint64_t>(request.waits));
  }
  return {};
}

/// A text of fixed size: ends with zeros, at least one.
template <size_t kSize>
bool getText(Reader* reader, char (&text)[kSize]) {
  bool ended = false;
  for (char& c : text) {
    c = reader->get<char>();
    if (ended && c != '\0') return false;
    ended = ended || c == '\0';
  }
  return ended;
}

}  // namespace

void encode(const Request& request, std::span<std::byte, kRequestSize> out) {
  Writer writer(out);
  writer.put(kRequestMagic);
  writer.put(kVersion);
  writer.put(request.kind);
  writer.put(request.tag);
  writer.put(request.region);
  writer.put(request.epoch.value());
  writer.put(request.size.value());
  writer.put(request.want);
  writer.put(request.waits);
  writer.putZeros(22);
}

Result<Request> decodeRequest(std::span<const std::byte> in) {
  if (in.size() != kRequestSize) return corrupt("length", in.size());
  Reader reader(in);
  if (const auto magic = reader.get<uint32_t>(); magic != kRequestMagic) {
    return corrupt("magic", magic);
  }
  TP_TRY(checkVersion(reader.get<uint16_t>()));
  Request request;
  const auto kind = reader.get<uint16_t>();
  if (kind < 1 || kind > static_cast<uint16_t>(RequestKind::kAll)) return corrupt("kind", kind);
  request.kind = static_cast<RequestKind>(kind);
  request.tag = reader.get<uint64_t>();
  request.region = reader.get<uint64_t>();
  request.epoch = Epoch(reader.get<uint64_t>());
  request.size = Bytes(reader.get<uint64_t>());
  const auto want = reader.get<uint8_t>();
  if (want > static_cast<uint8_t>(Want::kFetch)) return corrupt("want", want);
  request.want = static_cast<Want>(want);
  const auto waits = reader.get<uint8_t>();
  if (waits > static_cast<uint8_t>(Waits::kTable)) return corrupt("reason", waits);
  request.waits = static_cast<Waits>(waits);
  if (!allZero(&reader, 22)) return corrupt("bytes that have to be zero", 42);
  TP_TRY(checkFields(request));
  return request;
}

void encode(const Notice& notice, std::span<std::byte, kNoticeHeadSize> out) {
  TP_CHECK_OP(notice.text.size(), <=, kMaxText);  // its length has two bytes
  Writer writer(out);
  writer.put(kNoticeMagic);
  writer.put(kVersion);
  writer.put(notice.kind);
  const bool lease = notice.kind == NoticeKind::kLease;
  writer.put(notice.tag);
  writer.put(lease ? notice.until.value() : notice.region);
  writer.put(notice.epoch.value());
  writer.put(lease ? notice.length.value() : notice.size.value());
  writer.put(notice.status);
  writer.put(notice.pieces);
  writer.put(static_cast<uint16_t>(notice.text.size()));
  writer.put(notice.files);
}

Result<Notice> decodeNotice(std::span<const std::byte> in) {
  if (in.size() < kNoticeHeadSize) return corrupt("length", in.size());
  Reader reader(in);
  if (const auto magic = reader.get<uint32_t>(); magic != kNoticeMagic) {
    return corrupt("magic", magic);
  }
  TP_TRY(checkVersion(reader.get<uint16_t>()));
  Notice notice;
  const auto kind = reader.get<uint16_t>();
  if (kind < 1 || kind > static_cast<uint16_t>(NoticeKind::kLease)) return corrupt("kind", kind);
  notice.kind = static_cast<NoticeKind>(kind);
  notice.tag = reader.get<uint64_t>();
  notice.region = reader.get<uint64_t>();
  notice.epoch = Epoch(reader.get<uint64_t>());
  notice.size = Bytes(reader.get<uint64_t>());
  if (notice.kind == NoticeKind::kLease) {
    notice.until = Nanoseconds(std::exchange(notice.region, 0));
    notice.length = Nanoseconds(std::exchange(notice.size, Bytes()).value());
  }
  notice.status = reader.get<uint16_t>();
  notice.pieces = reader.get<uint16_t>();
  const auto text = reader.get<uint16_t>();
  notice.files = reader.get<uint16_t>();
  const bool region = notice.kind == NoticeKind::kRegion;
  if (notice.pieces > kMaxPieces || region != (notice.pieces > 0)) {
    return corrupt("count of pieces", notice.pieces);
  }
  if (notice.files > kMaxFiles || notice.files > notice.pieces) {
    return corrupt("count of descriptors", notice.files);
  }
  const size_t pieces = size_t{notice.pieces} * kPieceSize;
  if (text > kMaxText || in.size() != kNoticeHeadSize + pieces + text) {
    return corrupt("length", in.size());
  }
  notice.pieces_at = in.subspan(kNoticeHeadSize, pieces);
  notice.text = {reinterpret_cast<const char*>(in.data()) + kNoticeHeadSize + pieces, text};
  return notice;
}

void encode(const Piece& piece, std::span<std::byte, kPieceSize> out) {
  Writer writer(out);
  writer.put(piece.kind);
  writer.putZeros(3);
  writer.put(piece.file);
  writer.put(piece.offset);
  writer.put(piece.length.value());
  writer.put(piece.region);
  writer.put(piece.token.bytes);
  writer.put(piece.endpoint.host);
  writer.put(piece.endpoint.port);
}

Result<Piece> decodePiece(std::span<const std::byte, kPieceSize> in, uint16_t files) {
  Reader reader(in);
  Piece piece;
  const auto kind = reader.get<uint8_t>();
  if (kind < 1 || kind > static_cast<uint8_t>(PieceKind::kServer)) {
    return corrupt("kind of a piece", kind);
  }
  piece.kind = static_cast<PieceKind>(kind);
  if (!allZero(&reader, 3)) return corrupt("bytes that have to be zero", 1);
  piece.file = reader.get<uint32_t>();
  piece.offset = reader.get<uint64_t>();
  piece.length = Bytes(reader.get<uint64_t>());
  piece.region = reader.get<uint64_t>();
  piece.token = {reader.get<std::array<uint8_t, 16>>()};
  if (!getText(&reader, piece.endpoint.host) || !getText(&reader, piece.endpoint.port)) {
    return corrupt("endpoint of a piece", 0);
  }
  const bool server = piece.kind == PieceKind::kServer;
  if (server ? piece.file != 0 : piece.file >= files) return corrupt("descriptor", piece.file);
  if (server == (piece.region == 0)) return corrupt("region of a piece", piece.region);
  if (piece.length == Bytes() || piece.offset > UINT64_MAX - piece.length.value()) {
    return corrupt("length of a piece", piece.length.value());
  }
  return piece;
}

const char* nameOf(RequestKind kind) {
  static constexpr const char* kNames[] = {"unknown", "hello", "ask",    "reclaim",
                                           "return",  "left",  "status", "all"};
  const auto number = static_cast<size_t>(kind);
  return number < std::size(kNames) ? kNames[number] : kNames[0];
}

}  // namespace tidepool::agent_wire
