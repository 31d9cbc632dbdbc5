// SPDX-License-Identifier: Apache-2.0
// When certificates and lists of revoked ones end, in words, and what is in use that ends. Times
// are seconds since 1970, given by the caller. ExpiryBook is thread-safe; the rest is pure, but for
// the files that it is told to read.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"

namespace tidepool {

/// A certificate, or a list of revoked ones.
struct CertificateExpiry {
  std::string kind;  // "server", "ca", "crl", "client", "memserver"
  std::string name;  // whose: "host:n1", a CA's subject
  std::time_t end = 0;
};

/// kSoon: within a month.
enum class Left : uint8_t { kEnough = 0, kSoon = 1, kNone = 2 };
Left leftOf(std::time_t end, std::time_t now);

/// "expired 3 days ago", "ends in 5 hours".
std::string endText(std::time_t end, std::time_t now);
/// "the certificate of agent n1"; `actor` as the audit has it.
std::string certificateOf(std::string_view actor);
/// "the manager's certificate", "the list of revoked certificates of ...".
std::string whatIs(const CertificateExpiry& expiry);

/// Whose it is, as it says itself: the first URI among its names without "urn:tidepool:", else its
/// subject. At most 100 printable characters, so that it cannot spoil a log.
std::string ownerOf(const X509* certificate);
std::time_t endOf(const X509* certificate);
/// 0 if it has no end.
std::time_t endOf(const X509_CRL* crl);

/// What a PEM file has, in its order; lists of revoked certificates are of kind "crl" always.
/// Errors: kInvalidArgument when there is nothing of the kind in it.
Result<std::vector<CertificateExpiry>> expiriesIn(const std::string& path, std::string_view kind);
/// Why a connection with these PEM files cannot be made any more: "the certificate of agent n1
/// (FILE) expired 3 days ago"; empty when they have not ended, or cannot be read.
std::string expiredAmong(const std::string& certificate, const std::string& ca, std::time_t now);

/// What a process uses that ends, and what its clients and memory servers have shown.
class ExpiryBook {
 public:
  /// What the process uses itself, in place of what it used before.
  void setOwn(std::vector<CertificateExpiry> own) TP_EXCLUDES(mutex_);
  /// Those that still get in are to be seen again: some may be revoked.
  void forgetClients() TP_EXCLUDES(mutex_);
  /// A client, or memory server, has shown a certificate which is good, but perhaps for its end.
  void saw(const std::string& actor, std::time_t end, std::time_t now) TP_EXCLUDES(mutex_);
  /// What ends first comes first. Clients whose certificate ended more than a month ago are left
  /// out, and forgotten.
  std::vector<CertificateExpiry> all(std::time_t now) TP_EXCLUDES(mutex_);

  struct Line {
    Left left;
    std::string text;
  };
  /// For the log: what ends soon or has ended. Once a day, and when it gets worse.
  std::optional<Line> lineDue(std::time_t now) TP_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<CertificateExpiry> own_ TP_GUARDED_BY(mutex_);
  std::map<std::string, std::time_t> clients_ TP_GUARDED_BY(mutex_);  // by actor
  std::time_t said_ TP_GUARDED_BY(mutex_) = 0;
  Left said_left_ TP_GUARDED_BY(mutex_) = Left::kEnough;
};

}  // namespace tidepool
