// SPDX-License-Identifier: Apache-2.0
// MemserverDriver: each action is one request and its answer, erasing one for each piece.
#include <algorithm>
#include <tuple>

#include "fabricmgr/device/control_wire.h"
#include "fabricmgr/device/drivers.h"
#include "fabricmgr/model/fault_point.h"
#include "fabricmgr/model/hash.h"
#include "fabricmgr/tls/tls_connection.h"
#include "runtime/base/mutex.h"

namespace tidepool::fabric {
namespace {

/// A connection to this very memory server, which knows that we are a manager.
Result<std::unique_ptr<TlsConnection>> meet(const Device& device, TlsInUse& tls,
                                            Nanoseconds timeout) {
  const auto endpoint = parseEndpoint(device.address.c_str());
  if (!endpoint) return tl::unexpected(endpoint.error());
  const Nanoseconds deadline = kMonotonicClock.now() + timeout;
  auto wire = connectTcp(*endpoint, timeout);
  if (!wire) return tl::unexpected(wire.error());
  auto connection =
      std::make_unique<TlsConnection>(std::move(*wire), tls.now(), TlsConnection::Side::kClient,
                                      control::kMemserverUrn + device.name);
  const Status shaken = connection->handshake(deadline);
  if (const auto peer = connection->peer()) tls.met(*peer);
  TP_TRY(shaken);
  TP_TRY(control::receiveHello(*connection, deadline));
  return connection;
}

class MemserverDriver final : public DeviceDriver {
 public:
  MemserverDriver(Device device, Leader leader, std::shared_ptr<TlsInUse> tls,
                  std::unique_ptr<TlsConnection> connection, Nanoseconds timeout)
      : device_(std::move(device)),
        leader_(std::move(leader)),
        tls_(std::move(tls)),
        timeout_(timeout),
        connection_(std::move(connection)) {}

  /// Errors: as DriverFactory has them; those of the connection.
  Status lead(Leadership& leadership);
  Result<Bytes> capacity() override {
    auto answer = ask({.opcode = control::Opcode::kCapacity});
    if (!answer) return tl::unexpected(answer.error());
    MutexLock lock(mutex_);
    data_port_ = answer->data_port;
    token_key_ = std::move(answer->payload);
    return Bytes(answer->value);
  }
  Status attach(const Grant& grant) override { return order(control::Opcode::kAttach, grant); }
  Status revoke(const Grant& grant) override { return order(control::Opcode::kRevoke, grant); }
  Result<ScrubEvidence> scrub(const Grant& grant, const Progress& progress) override;
  Result<ScrubEvidence> verify(const Grant& grant, const ScrubEvidence& scrubbed,
                               const Progress& progress) override;
  Status forget(RegionId region) override {
    const auto answer = ask({.opcode = control::Opcode::kForget, .region = region});
    return answer ? Status() : Status(tl::unexpected(answer.error()));
  }
  Result<std::vector<GrantReport>> inspect() override {
    const auto answer = ask({.opcode = control::Opcode::kInspect});
    if (!answer) return tl::unexpected(answer.error());
    return control::decodeReports(answer->payload, device_.id);
  }
  Result<Pass> pass(const Grant& grant) override;
  Status release() override {
    const auto answer = ask({.opcode = control::Opcode::kRelease});
    return answer ? Status() : Status(tl::unexpected(answer.error()));
  }

 private:
  Status order(control::Opcode opcode, const Grant& grant) {
    const auto answer = ask({opcode, grant.region, grant.epoch, 0, 0, grant.extents, {}});
    return answer ? Status() : Status(tl::unexpected(answer.error()));
  }
  /// One request and its answer. An answer that says no is an error with its text.
  Result<control::Answer> ask(const control::Request& request) TP_EXCLUDES(mutex_);
  /// Likewise, whatever it says.
  Result<control::Answer> converse(const control::Request& request) TP_EXCLUDES(mutex_);
  Result<control::Answer> exchange(TlsConnection& connection, const control::Request& request,
                                   Nanoseconds deadline) const;
  /// After a reload both sides show their certificates again: either may have another by now.
  Status meetAgain(Nanoseconds deadline) TP_REQUIRES(mutex_);
  tl::unexpected<Error> refusal(const control::Answer& answer) const {
    return fail(answer.status, "memory server %s: %.190s", device_.name.c_str(),
                answer.payload.c_str());
  }

  const Device device_;
  const Leader leader_;
  const std::shared_ptr<TlsInUse> tls_;
  const Nanoseconds timeout_;
  Mutex mutex_;
  std::unique_ptr<TlsConnection> connection_ TP_GUARDED_BY(mutex_);
  uint16_t data_port_ TP_GUARDED_BY(mutex_) = 0;
  std::string token_key_ TP_GUARDED_BY(mutex_);
  bool broken_ TP_GUARDED_BY(mutex_) = false;
};

Status MemserverDriver::lead(Leadership& leadership) {
  const auto answer = converse({.opcode = control::Opcode::kLead, .leader = leader_});
  if (!answer) return tl::unexpected(answer.error());
  if (answer->status == ErrorCode()) return {};
  if (answer->status == ErrorCode::kStaleEpoch) leadership.supersede(Term(answer->value));
  return refusal(*answer);
}

Result<control::Answer> MemserverDriver::ask(const control::Request& request) {
  auto answer = converse(request);
  if (!answer || answer->status == ErrorCode()) return answer;
  return refusal(*answer);
}

Result<control::Answer> MemserverDriver::converse(const control::Request& request) {
  MutexLock lock(mutex_);
  if (broken_) {
    return fail(ErrorCode::kUnreachable, "the connection to memory server %s has ended",
                device_.name.c_str());
  }
  broken_ = true;  // until a whole answer is here: half a conversation cannot go on
  const Nanoseconds deadline = kMonotonicClock.now() + timeout_;
  if (connection_->context() != tls_->now().get()) TP_TRY(meetAgain(deadline));
  auto answer = exchange(*connection_, request, deadline);
  if (answer) broken_ = false;
  return answer;
}

Status MemserverDriver::meetAgain(Nanoseconds deadline) {
  auto connection = meet(device_, *tls_, timeout_);
  if (!connection) return tl::unexpected(connection.error());
  const auto led =
      exchange(**connection, {.opcode = control::Opcode::kLead, .leader = leader_}, deadline);
  if (!led) return tl::unexpected(led.error());
  if (led->status != ErrorCode()) return refusal(*led);
  connection_ = std::move(*connection);
  return {};
}

Result<control::Answer> MemserverDriver::exchange(TlsConnection& connection,
                                                  const control::Request& request,
                                                  Nanoseconds deadline) const {
  TP_TRY(control::sendFrame(connection, control::encode(request), deadline));
  const auto frame = control::receiveFrame(connection, control::kAnswerMagic, deadline);
  if (!frame) return tl::unexpected(frame.error());
  auto answer = control::decodeAnswer(*frame);
  if (!answer) return answer;
  if (answer->opcode != request.opcode || answer->region != request.region) {
    return fail(ErrorCode::kCorrupt, "memory server %s answered something else",
                device_.name.c_str());
  }
  return answer;
}

Result<ScrubEvidence> MemserverDriver::scrub(const Grant& grant, const Progress& progress) {
  const uint64_t size = sumOf(grant.extents).value();
  for (uint64_t at = 0; at < size; at += control::kPiece) {
    const uint64_t length = std::min(control::kPiece, size - at);
    const auto done = ask({control::Opcode::kScrub, grant.region, grant.epoch, at, length, {}, {}});
    if (!done) return tl::unexpected(done.error());
    progress(Bytes(at + length));
  }
  ScrubEvidence evidence;
  evidence.region = grant.region;
  evidence.device = device_.id;
  evidence.epoch = grant.epoch;
  evidence.passes = 1;
  return evidence;
}

Result<ScrubEvidence> MemserverDriver::verify(const Grant& grant, const ScrubEvidence&,
                                              const Progress& progress) {
  const uint64_t size = sumOf(grant.extents).value();
  for (uint64_t at = 0; at < size; at += control::kPiece) {
    const uint64_t length = std::min(control::kPiece, size - at);
    const auto answer =
        ask({control::Opcode::kVerify, grant.region, grant.epoch, at, length, {}, {}});
    if (!answer) return tl::unexpected(answer.error());
    if (answer->value > 0) {
      return fail(ErrorCode::kCorrupt, "%llu bytes of region %llu were not zero when read back",
                  static_cast<unsigned long long>(answer->value),
                  static_cast<unsigned long long>(grant.region.value()));
    }
    progress(Bytes(at + length));
    if (at + length < size) continue;
    const auto reports = control::decodeReports(answer->payload, device_.id);
    if (reports && reports->size() == 1) return reports->front().evidence;
  }
  return fail(ErrorCode::kCorrupt, "memory server %s gave no evidence", device_.name.c_str());
}

Result<Pass> MemserverDriver::pass(const Grant& grant) {
  const auto known = [this] {
    const MutexLock lock(mutex_);
    return std::pair(data_port_, token_key_);
  };
  auto [port, key] = known();
  if (port == 0) {
    TP_TRY(capacity());
    std::tie(port, key) = known();
  }
  const std::string host = device_.address.substr(0, device_.address.rfind(':'));
  const wire::Token token = control::regionToken(key, leader_.fabric, grant.region, grant.epoch);
  return Pass{host + ":" + std::to_string(port), hexOf(token.bytes)};
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> openMemserver(const Device& device, Leadership& leadership,
                                                    const std::shared_ptr<TlsInUse>& tls,
                                                    Nanoseconds timeout) {
  auto connection = meet(device, *tls, timeout);
  if (!connection) {
    return fail(connection.error().code(), "memory server %s: %.190s", device.name.c_str(),
                connection.error().text());
  }
  auto driver = std::make_shared<MemserverDriver>(device, leadership.leader(), tls,
                                                  std::move(*connection), timeout);
  TP_TRY(driver->lead(leadership));
  return std::shared_ptr<DeviceDriver>(std::move(driver));
}

}  // namespace tidepool::fabric
