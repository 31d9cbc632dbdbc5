// SPDX-License-Identifier: Apache-2.0
// The server's side of mutual TLS: its own certificate, whom it believes, and who is revoked, read
// from PEM files. A context never changes; a reload makes a new one. Thread-safe but for recheck(),
// which belongs to the thread of the connection.
#pragma once

#include <openssl/ssl.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/api/principal.h"
#include "fabricmgr/expiry.h"
#include "runtime/base/result.h"

namespace tidepool::api {

struct TlsFiles {
  std::string certificate;  // with the chain up to the CA, if there is one
  std::string key;
  std::string ca;
  std::string crl;  // empty: nothing is revoked
};

/// Frees what OpenSSL gives out.
struct SslDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
template <typename T>
using SslPointer = std::unique_ptr<T, SslDeleter>;

class TlsContext {
 public:
  /// Errors: kInvalidArgument, naming the file and what is wrong with it.
  static Result<std::shared_ptr<TlsContext>> load(const TlsFiles& files);

  SslPointer<SSL> newConnection() const { return SslPointer<SSL>(SSL_new(context_.get())); }
  /// Whether the connection is one of newConnection().
  bool made(SSL* ssl) const { return SSL_get_SSL_CTX(ssl) == context_.get(); }
  /// Whether the peer, accepted under an earlier context, would be accepted now. Errors:
  /// kPermission, with the reason.
  Status recheck(SSL* ssl) const;
  /// When its certificate, those of the CA and the lists of revoked ones end.
  const std::vector<CertificateExpiry>& expiries() const { return expiries_; }

 private:
  TlsContext(SslPointer<SSL_CTX> context, std::vector<CertificateExpiry> expiries)
      : context_(std::move(context)), expiries_(std::move(expiries)) {}
  SslPointer<SSL_CTX> context_;
  std::vector<CertificateExpiry> expiries_;
};

struct PeerCertificate {
  Principal principal;
  std::time_t not_after = 0;
};
/// Who the verified peer is. Errors: kPermission, when its certificate does not say so.
Result<PeerCertificate> peerOf(SSL* ssl);

/// A peer whose certificate was not accepted.
struct RefusedPeer {
  std::string why;
  /// All is well with its certificate, but that it has ended.
  std::optional<PeerCertificate> ended;
};
/// Null: none was shown, or it was accepted.
const RefusedPeer* refusedPeer(SSL* ssl);

/// The text of OpenSSL's last error in this thread; clears them all.
std::string takeSslError();

}  // namespace tidepool::api
