// SPDX-License-Identifier: Apache-2.0
// A Connection in TLS 1.3, of which both ends show a certificate. It never waits by itself: what
// cannot be done at once moves nothing, and awaits() says for what to poll. Belongs to one thread
// at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fabricmgr/tls/tls_context.h"
#include "runtime/base/units.h"
#include "runtime/transport/connection.h"

namespace tidepool {

class TlsConnection final : public Connection {
 public:
  enum class Side : uint8_t { kClient, kServer };

  /// `peer`: the URN that the other side's certificate has to be for; see newConnection().
  TlsConnection(std::unique_ptr<Connection> wire, std::shared_ptr<const TlsContext> context,
                Side side, std::string peer);

  /// Goes on with the handshake, which comes before everything else. True: it is done. Errors:
  /// kPermission, in words, for a certificate of either side; kUnsupported for a peer that does not
  /// speak TLS 1.3; those of the wire.
  Result<bool> handshake();
  /// Likewise, to its end, which has to be by `deadline` (on kMonotonicClock), however many pieces
  /// the other side makes of it. Errors also: kTimedOut.
  Status handshake(Nanoseconds deadline);
  /// What the peer showed in a handshake that succeeded, or failed for its end alone; nothing else.
  std::optional<PeerCertificate> peer() const;
  /// Under which it was made, or checked last.
  const TlsContext* context() const { return context_.get(); }
  /// Whether the peer would be accepted under the context in use now. Errors: kPermission.
  Status recheck(std::shared_ptr<const TlsContext> now);

  /// As Connection has them, with Wait::kNever alone. Errors also: those of handshake(), since a
  /// server's opinion of a client's certificate arrives after it.
  Result<size_t> send(std::span<const iovec> parts, Wait wait) override;
  Result<size_t> receive(std::span<const iovec> parts, Wait wait) override;
  int fd() const override { return wire_->fd(); }
  /// POLLIN or POLLOUT.
  short awaits() const { return awaits_; }
  /// Something can be received that poll(2) does not see.
  bool hasMore() const { return SSL_pending(ssl_.get()) > 0; }

 private:
  friend struct TlsWire;
  /// What OpenSSL's answer means: wait (no error), or an end.
  Status stopped(int answer);

  const std::unique_ptr<Connection> wire_;
  const std::string peer_;
  std::shared_ptr<const TlsContext> context_;  // under which it was checked last
  SslPointer<SSL> ssl_;
  std::optional<Error> wire_error_;
  short awaits_;
};

}  // namespace tidepool
