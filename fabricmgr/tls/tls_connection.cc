// SPDX-License-Identifier: Apache-2.0
// TLS over a Connection by OpenSSL. What it says of certificates is put into words that tell what
// to do.
#include "fabricmgr/tls/tls_connection.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <poll.h>

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace tidepool {

/// OpenSSL's way to the wire. Its own one for sockets would raise SIGPIPE.
struct TlsWire {
  static int write(BIO* bio, const char* data, int size) {
    auto& self = *static_cast<TlsConnection*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const iovec part = {const_cast<char*>(data), static_cast<size_t>(size)};
    const auto sent = self.wire_->send({&part, 1}, Wait::kNever);
    if (sent && *sent > 0) return static_cast<int>(*sent);
    if (sent) BIO_set_retry_write(bio);
    if (!sent) self.wire_error_ = sent.error();
    return -1;
  }
  static int read(BIO* bio, char* data, int size) {
    auto& self = *static_cast<TlsConnection*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const iovec part = {data, static_cast<size_t>(size)};
    const auto got = self.wire_->receive({&part, 1}, Wait::kNever);
    if (got && *got > 0) return static_cast<int>(*got);
    if (got) BIO_set_retry_read(bio);
    if (!got) self.wire_error_ = got.error();
    return -1;
  }
  static long control(BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1 : 0; }
  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }
  static BIO* make(TlsConnection* connection) {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "connection");
      TP_CHECK(made != nullptr && BIO_meth_set_write(made, write) == 1 &&
               BIO_meth_set_read(made, read) == 1 && BIO_meth_set_ctrl(made, control) == 1 &&
               BIO_meth_set_create(made, create) == 1);
      return made;
    }();
    BIO* const bio = BIO_new(method);
    TP_CHECK(bio != nullptr);
    BIO_set_data(bio, connection);
    return bio;
  }
};

namespace {

constexpr char kMakeOne[] =
    "`fabricmgr ca issue manager NAME` makes a manager's, `fabricmgr ca issue memserver DEVICE` a "
    "memory server's";

/// What the other side's alert says of us.
const char* wordsForAlert(int alert) {
  switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
      return "it has expired here: `fabricmgr ca renew`, then SIGHUP";
    case SSL_AD_CERTIFICATE_REVOKED:
      return "it is revoked: issue another one with a new key";
    case SSL_AD_UNKNOWN_CA:
      return "it is of a CA that the other side does not know: both need one of the fabric's CA";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "there is none";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
      return "it is for something else";
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_DECRYPT_ERROR:
      return "the other side's log says why";
    default:
      return nullptr;
  }
}

Error errorOf(SSL* ssl) {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  const std::string text = takeSslError();
  if (const RefusedPeer* refused = refusedPeer(ssl)) {
    return Error::make(ErrorCode::kPermission, "the other side's certificate is refused: %.180s",
                       refused->why.c_str());
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Error::make(ErrorCode::kPermission, "the other side shows no certificate: %s", kMakeOne);
  }
  const bool alert = reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256;
  if (const char* words = alert ? wordsForAlert(reason - SSL_AD_REASON_OFFSET) : nullptr) {
    return Error::make(ErrorCode::kPermission, "the other side refuses our certificate: %s", words);
  }
  return Error::make(ErrorCode::kUnsupported,
                     "no TLS 1.3 with the other side (%s): is that a control port, and a fabric "
                     "manager, of this version?",
                     text.c_str());
}

}  // namespace

TlsConnection::TlsConnection(std::unique_ptr<Connection> wire,
                             std::shared_ptr<const TlsContext> context, Side side, std::string peer)
    : wire_(std::move(wire)),
      peer_(std::move(peer)),
      context_(std::move(context)),
      ssl_(context_->newConnection(&peer_)),
      awaits_(side == Side::kServer ? POLLIN : POLLOUT) {
  TP_CHECK(ssl_ != nullptr && SSL_set_min_proto_version(ssl_.get(), TLS1_3_VERSION) == 1);
  SSL_set_mode(ssl_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  BIO* const bio = TlsWire::make(this);
  SSL_set_bio(ssl_.get(), bio, bio);
  side == Side::kServer ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
}

Status TlsConnection::stopped(int answer) {
  const int error = SSL_get_error(ssl_.get(), answer);
  awaits_ = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return {};
  if (error == SSL_ERROR_ZERO_RETURN) {
    return fail(ErrorCode::kUnreachable, "the peer closed the connection");
  }
  // An alert that could not be sent any more does not hide what it was about.
  const bool wire = error == SSL_ERROR_SYSCALL && wire_error_;
  const Error why = wire && refusedPeer(ssl_.get()) == nullptr ? *wire_error_ : errorOf(ssl_.get());
  ERR_clear_error();
  return tl::unexpected(why);
}

Result<bool> TlsConnection::handshake() {
  ERR_clear_error();
  const int answer = SSL_do_handshake(ssl_.get());
  if (answer == 1) {
    awaits_ = POLLIN;
    return true;
  }
  TP_TRY(stopped(answer));
  return false;
}

Status TlsConnection::handshake(Nanoseconds deadline) {
  for (;;) {
    const auto done = handshake();
    if (!done) return tl::unexpected(done.error());
    if (*done) return {};
    const Nanoseconds now = kMonotonicClock.now();
    if (now >= deadline) return fail(ErrorCode::kTimedOut, "no TLS handshake in time");
    pollfd waiting = {fd(), awaits_, 0};
    const auto milliseconds =
        std::min<uint64_t>((deadline - now).value() / 1'000'000 + 1, 1'000'000);
    (void)poll(&waiting, 1, static_cast<int>(milliseconds));
  }
}

std::optional<PeerCertificate> TlsConnection::peer() const {
  if (const RefusedPeer* refused = refusedPeer(ssl_.get())) return refused->ended;
  const auto known = peerOf(ssl_.get());
  return known ? std::optional(*known) : std::nullopt;
}

Status TlsConnection::recheck(std::shared_ptr<const TlsContext> now) {
  if (now == context_) return {};
  TP_TRY(now->recheck(ssl_.get()));
  context_ = std::move(now);
  return {};
}

Result<size_t> TlsConnection::send(std::span<const iovec> parts, Wait wait) {
  TP_CHECK(wait == Wait::kNever);
  ERR_clear_error();
  size_t sent = 0;
  const int answer = SSL_write_ex(ssl_.get(), parts[0].iov_base, parts[0].iov_len, &sent);
  if (answer == 1) {
    awaits_ = POLLIN;
    return sent;
  }
  TP_TRY(stopped(answer));
  return size_t{0};
}

Result<size_t> TlsConnection::receive(std::span<const iovec> parts, Wait wait) {
  TP_CHECK(wait == Wait::kNever);
  ERR_clear_error();
  size_t received = 0;
  const int answer = SSL_read_ex(ssl_.get(), parts[0].iov_base, parts[0].iov_len, &received);
  if (answer == 1) {
    awaits_ = POLLIN;
    return received;
  }
  TP_TRY(stopped(answer));
  return size_t{0};
}

}  // namespace tidepool
