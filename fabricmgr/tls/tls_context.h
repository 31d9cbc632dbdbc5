// SPDX-License-Identifier: Apache-2.0
// Mutual TLS: the process's own certificate, whom it believes, and who is revoked, read from PEM
// files. A context never changes; a reload makes a new one. Thread-safe but for recheck(), which
// belongs to the thread of the connection.
#pragma once

#include <openssl/ssl.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricmgr/expiry.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

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
  /// Errors: kInvalidArgument, naming the file and what is wrong with it; kPermission, where others
  /// can read the key, as checkKeyFile().
  static Result<std::shared_ptr<TlsContext>> load(const TlsFiles& files);

  /// For either side. With `peer` only a certificate for that URN is accepted, or, where it ends in
  /// a colon, for any that begins so; borrowed for as long as the connection is there.
  SslPointer<SSL> newConnection(const std::string* peer = nullptr) const;
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
  std::string urn;  // "urn:tidepool:ROLE:NAME"; empty: it has none
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
/// The context that new connections get, until the files are read again. Thread-safe.
class TlsInUse {
 public:
  /// Errors: as TlsContext::load().
  static Result<std::shared_ptr<TlsInUse>> load(const TlsFiles& files);
  /// Reads the files again, and forgets who was met. Errors: likewise; what was in use stays so.
  Status reload() TP_EXCLUDES(mutex_);
  std::shared_ptr<const TlsContext> now() const TP_EXCLUDES(mutex_);
  /// A peer has shown this, which is good, but perhaps for its end.
  void met(const PeerCertificate& peer);
  std::vector<CertificateExpiry> peers(std::time_t now) { return peers_.all(now); }

 private:
  TlsInUse(TlsFiles files, std::shared_ptr<const TlsContext> context)
      : files_(std::move(files)), context_(std::move(context)) {}
  const TlsFiles files_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsContext> context_ TP_GUARDED_BY(mutex_);
  ExpiryBook peers_;
};

/// Null: none was shown, or it was accepted.
const RefusedPeer* refusedPeer(SSL* ssl);

/// The text of OpenSSL's last error in this thread; clears them all.
std::string takeSslError();

}  // namespace tidepool
