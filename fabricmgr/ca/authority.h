// SPDX-License-Identifier: Apache-2.0
// A small certificate authority for labs: a folder with a root, what it has issued, and what it has
// revoked. Keys are ECDSA P-256. Roles stand in certificates as a URI, urn:tidepool:ROLE:NAME. One
// process at a time (a lock file sees to it); files appear whole or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace tidepool::ca {

/// What a certificate is for.
struct Issue {
  std::string kind;                // server, viewer, operator, host, admin, manager, memserver
  std::string name;                // of the person, host or server
  std::vector<std::string> hosts;  // of servers: DNS names and addresses it is reached by
  int64_t valid_seconds = 0;       // negative: has expired already, for tests
};

struct Issued {
  std::string certificate, key;  // paths; no key where somebody else has it
  std::string serial;            // hexadecimal
};

struct Entry {
  std::string serial, kind, name, not_after;
  bool revoked = false;
};

class Authority {
 public:
  /// Makes `folder` an authority: ca.crt, ca.key (0600), crl.pem, index. Errors: kConflict if it is
  /// one already, kIo, kPermission.
  static Result<Authority> init(const std::string& folder, int64_t valid_seconds);
  /// Errors: kNotFound if it is none.
  static Result<Authority> open(const std::string& folder);

  /// Writes NAME.crt and NAME.key (0600) into `out`. Errors: kInvalidArgument, kConflict if a file
  /// is there already.
  Result<Issued> issue(const Issue& what, const std::string& out) const;
  /// As issue(), for the key of a certificate request (PKCS#10), which stays where it is. Errors
  /// also: kInvalidArgument if the file is no request.
  Result<Issued> sign(const Issue& what, const std::string& request, const std::string& out) const;
  /// Puts in the place of a certificate that was issued here one for the same key, kind, name and
  /// hosts. The old one stays good until it ends. Errors: kInvalidArgument, kNotFound if it is
  /// another authority's, kRefused if it is revoked.
  Result<Issued> renew(const std::string& certificate, int64_t valid_seconds) const;
  /// Puts every certificate that `which` names (serial, or ROLE:NAME) on crl.pem. Returns how many
  /// were not on it. Errors: kNotFound.
  Result<int> revoke(const std::string& which) const;
  Result<std::vector<Entry>> list() const;
  /// Its own root, of kind "ca", and its list of revoked certificates, of kind "crl" and without a
  /// serial. Errors: kInvalidArgument, when a file of the folder is none.
  Result<std::vector<Entry>> own() const;

  std::string certificatePath() const { return folder_ + "/ca.crt"; }
  std::string crlPath() const { return folder_ + "/crl.pem"; }

 private:
  explicit Authority(std::string folder) : folder_(std::move(folder)) {}
  /// In the index first: a certificate that nobody can revoke must not exist.
  Status note(const Issue& what, const std::string& serial, const std::string& not_after) const;

  std::string folder_;
};

}  // namespace tidepool::ca
