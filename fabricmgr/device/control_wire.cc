// SPDX-License-Identifier: Apache-2.0
// Encoding and moving the control protocol's frames. All numbers are little-endian.
#include "fabricmgr/device/control_wire.h"

#include <cstring>
#include <type_traits>

#include "fabricmgr/model/hash.h"
#include "runtime/base/check.h"

namespace tidepool::fabric::control {
namespace {

constexpr uint32_t kMaxExtents = 1u << 20;

class Writer {
 public:
  template <typename Number>
  Writer& put(Number number) {
    static_assert(std::is_unsigned_v<Number>);
    for (size_t i = 0; i < sizeof number; ++i) {
      bytes_ += static_cast<char>(static_cast<uint64_t>(number) >> (8 * i) & 0xff);
    }
    return *this;
  }
  Writer& put(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads numbers off the front; what is not there reads as 0 and is remembered.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename Number>
  Number get() {
    if (bytes_.size() < sizeof(Number)) {
      short_ = true;
      return 0;
    }
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) {
      number |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[i])) << (8 * i);
    }
    bytes_.remove_prefix(sizeof(Number));
    return static_cast<Number>(number);
  }
  std::string_view bytes(size_t count) {
    short_ = short_ || bytes_.size() < count;
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  bool whole() const { return !short_ && bytes_.empty(); }
  bool good() const { return !short_; }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool short_ = false;
};

tl::unexpected<Error> malformed(const char* what) {
  return fail(ErrorCode::kCorrupt, "a control frame is malformed: %s", what);
}

void putExtents(Writer* writer, const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) writer->put(extent.offset).put(extent.length.value());
}

constexpr size_t kLeaderSize = kFabricIdSize + 20;

void putLeader(Writer* writer, const Leader& leader) {
  TP_CHECK_OP(leader.fabric.size(), ==, kFabricIdSize);
  writer->put(std::string_view(leader.fabric)).put(leader.term.value()).put(leader.incarnation);
  writer->put(static_cast<uint32_t>(leader.take_over));
}

bool getLeader(Reader* reader, Leader* leader) {
  leader->fabric = reader->bytes(kFabricIdSize);
  leader->term = Term(reader->get<uint64_t>());
  leader->incarnation = reader->get<uint64_t>();
  const auto take_over = reader->get<uint32_t>();
  leader->take_over = static_cast<TakeOver>(take_over);
  return isFabricId(leader->fabric) && take_over <= 1;
}

bool getExtents(Reader* reader, uint32_t count, DeviceId device, std::vector<Extent>* out) {
  if (count > kMaxExtents || reader->left() / 16 < count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const auto offset = reader->get<uint64_t>();
    out->push_back({device, offset, Bytes(reader->get<uint64_t>())});
  }
  return true;
}

}  // namespace

std::string encode(const Hello& hello) {
  Writer writer;
  writer.put(kHelloMagic).put(hello.version).put(uint16_t{0}).put(uint64_t{0});
  return writer.take();
}

Result<Hello> decodeHello(std::string_view bytes) {
  Reader reader(bytes);
  Hello hello;
  if (reader.get<uint32_t>() != kHelloMagic) return malformed("not a memory server's control port");
  hello.version = reader.get<uint16_t>();
  if (hello.version != kVersion) {
    return fail(ErrorCode::kUnsupported,
                "the memory server speaks control version %u, not %u: upgrade the older side",
                hello.version, kVersion);
  }
  reader.get<uint16_t>();
  reader.get<uint64_t>();
  if (!reader.whole()) return malformed("length of the greeting");
  return hello;
}

std::string encode(const Request& request) {
  Writer writer;
  const bool leads = request.opcode == Opcode::kLead;
  const size_t payload = leads ? kLeaderSize : request.extents.size() * 16;
  writer.put(kRequestMagic).put(static_cast<uint32_t>(payload));
  writer.put(static_cast<uint8_t>(request.opcode)).put(uint8_t{0}).put(uint16_t{0});
  writer.put(static_cast<uint32_t>(request.extents.size()));
  writer.put(request.region.value()).put(request.epoch.value());
  writer.put(request.offset).put(request.length);
  if (leads) putLeader(&writer, request.leader);
  putExtents(&writer, request.extents);
  return writer.take();
}

Result<Request> decodeRequest(std::string_view frame) {
  Reader reader(frame);
  Request request;
  reader.get<uint32_t>();
  const auto payload = reader.get<uint32_t>();
  const auto opcode = reader.get<uint8_t>();
  const auto zero8 = reader.get<uint8_t>();
  const auto zero16 = reader.get<uint16_t>();
  const auto count = reader.get<uint32_t>();
  request.opcode = static_cast<Opcode>(opcode);
  request.region = RegionId(reader.get<uint64_t>());
  request.epoch = Epoch(reader.get<uint64_t>());
  request.offset = reader.get<uint64_t>();
  request.length = reader.get<uint64_t>();
  const bool leads = request.opcode == Opcode::kLead;
  const uint64_t expected = leads ? kLeaderSize : uint64_t{count} * 16;
  if (!reader.good() || zero8 != 0 || zero16 != 0 || payload != expected || (leads && count > 0)) {
    return malformed("header");
  }
  if (opcode < 1 || opcode > static_cast<uint8_t>(Opcode::kRelease)) return malformed("opcode");
  if (leads && !getLeader(&reader, &request.leader)) return malformed("leader");
  if (!getExtents(&reader, count, DeviceId(), &request.extents) || !reader.whole()) {
    return malformed("extents");
  }
  return request;
}

std::string encode(const Answer& answer) {
  Writer writer;
  writer.put(kAnswerMagic).put(static_cast<uint32_t>(answer.payload.size()));
  writer.put(static_cast<uint16_t>(answer.status)).put(answer.data_port);
  writer.put(static_cast<uint8_t>(answer.opcode)).put(uint8_t{0}).put(uint16_t{0});
  writer.put(answer.value).put(answer.region.value()).put(uint64_t{0}).put(uint64_t{0});
  writer.put(std::string_view(answer.payload));
  return writer.take();
}

Result<Answer> decodeAnswer(std::string_view frame) {
  Reader reader(frame);
  Answer answer;
  reader.get<uint32_t>();
  const auto payload = reader.get<uint32_t>();
  answer.status = static_cast<ErrorCode>(reader.get<uint16_t>());
  answer.data_port = reader.get<uint16_t>();
  answer.opcode = static_cast<Opcode>(reader.get<uint8_t>());
  reader.bytes(3);
  answer.value = reader.get<uint64_t>();
  answer.region = RegionId(reader.get<uint64_t>());
  reader.bytes(16);
  answer.payload = reader.bytes(payload);
  if (!reader.whole()) return malformed("answer");
  return answer;
}

Result<uint32_t> payloadAfter(std::string_view header, uint32_t magic) {
  Reader reader(header);
  if (reader.get<uint32_t>() != magic) return malformed("magic");
  const auto payload = reader.get<uint32_t>();
  if (payload > kMaxPayload) return malformed("payload");
  return payload;
}

std::string encode(const std::vector<GrantReport>& reports) {
  Writer writer;
  for (const GrantReport& report : reports) {
    const Grant& grant = report.grant;
    const ScrubEvidence& e = report.evidence;
    writer.put(grant.region.value()).put(grant.epoch.value());
    writer.put(static_cast<uint32_t>(grant.state));
    writer.put(static_cast<uint32_t>(grant.extents.size()));
    putExtents(&writer, grant.extents);
    if (grant.state != GrantState::kScrubbed) continue;
    writer.put(e.bytes.value()).put(e.passes).put(e.nonzero.value());
    writer.put(e.started.value()).put(e.finished.value());
    writer.put(static_cast<uint32_t>(e.digest.size())).put(std::string_view(e.digest));
  }
  return writer.take();
}

Result<std::vector<GrantReport>> decodeReports(std::string_view bytes, DeviceId device) {
  Reader reader(bytes);
  std::vector<GrantReport> reports;
  while (reader.left() > 0) {
    GrantReport report;
    report.grant.region = RegionId(reader.get<uint64_t>());
    report.grant.epoch = Epoch(reader.get<uint64_t>());
    const auto state = reader.get<uint32_t>();
    report.grant.state = static_cast<GrantState>(state);
    const auto count = reader.get<uint32_t>();
    if (state < 1 || state > 3 || !getExtents(&reader, count, device, &report.grant.extents)) {
      return malformed("report");
    }
    if (report.grant.state == GrantState::kScrubbed) {
      ScrubEvidence& e = report.evidence;
      e.region = report.grant.region;
      e.device = device;
      e.epoch = report.grant.epoch;
      e.bytes = Bytes(reader.get<uint64_t>());
      e.passes = reader.get<uint32_t>();
      e.nonzero = Bytes(reader.get<uint64_t>());
      e.started = Nanoseconds(reader.get<uint64_t>());
      e.finished = Nanoseconds(reader.get<uint64_t>());
      e.digest = reader.bytes(reader.get<uint32_t>());
    }
    if (!reader.good()) return malformed("report");
    reports.push_back(std::move(report));
  }
  return reports;
}

wire::Token regionToken(std::string_view key, std::string_view fabric, RegionId region,
                        Epoch epoch) {
  const std::string text = Writer()
                               .put(std::string_view("tidepool region"))
                               .put(fabric)
                               .put(region.value())
                               .put(epoch.value())
                               .take();
  const Digest mac = hmacSha256(key, text);
  wire::Token token;
  memcpy(token.bytes.data(), mac.data(), token.bytes.size());
  return token;
}

Status sendFrame(Connection& connection, const std::string& frame, Nanoseconds deadline) {
  return sendAll(connection, std::as_bytes(std::span(frame)), deadline);
}

Result<std::string> receiveFrame(Connection& connection, uint32_t magic, Nanoseconds deadline) {
  std::string frame(kHeaderSize, '\0');
  TP_TRY(receiveAll(connection, std::as_writable_bytes(std::span(frame)), deadline));
  const auto payload = payloadAfter(frame, magic);
  if (!payload) return tl::unexpected(payload.error());
  frame.resize(kHeaderSize + *payload);
  const auto rest = std::as_writable_bytes(std::span(frame)).subspan(kHeaderSize);
  TP_TRY(receiveAll(connection, rest, deadline));
  return frame;
}

Result<Hello> receiveHello(Connection& connection, Nanoseconds deadline) {
  std::string bytes(kHelloSize, '\0');
  TP_TRY(receiveAll(connection, std::as_writable_bytes(std::span(bytes)), deadline));
  return decodeHello(bytes);
}

}  // namespace tidepool::fabric::control
