// SPDX-License-Identifier: Apache-2.0
// Certificates and CRLs by libcrypto, as PEM texts. Pure but for the files they are told to read.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fabricmgr/ca/authority.h"
#include "runtime/base/result.h"

namespace tidepool::ca {

struct PemPair {
  std::string certificate, key;  // no key where somebody else has it
  std::string serial;            // hexadecimal
  std::string not_after;         // 2027-01-31T00:00:00Z
};

/// An authority's own certificate and key, by their files.
struct SignerFiles {
  std::string certificate, key;
};

/// No two have the same name: it is by its issuer's name that a list of revoked certificates is
/// found.
Result<PemPair> makeRoot(int64_t valid_seconds);
Result<PemPair> makeCertificate(const SignerFiles& signer, const Issue& what);
/// For the key that a request (PKCS#10, a PEM file) is signed with; `what` alone says whose it is.
/// Errors: kInvalidArgument if it is no request, or its signature is wrong.
Result<PemPair> signRequest(const SignerFiles& signer, const std::string& request,
                            const Issue& what);
/// For the key of a certificate (a PEM file).
Result<PemPair> renewCertificate(const SignerFiles& signer, const std::string& certificate,
                                 const Issue& what);

/// What a certificate (a PEM file) says of itself.
struct CertificateFacts {
  std::string serial;              // hexadecimal
  std::string not_after;           // 2027-01-31T00:00:00Z
  std::vector<std::string> hosts;  // DNS names and addresses
};
/// Errors: kInvalidArgument if it is none.
Result<CertificateFacts> readCertificate(const std::string& path);
/// Until when a list of revoked certificates (a PEM file) is good. Errors: as readCertificate().
Result<std::string> readCrlEnd(const std::string& path);

/// Good for as long as the root: a list that runs out would lock every agent out.
Result<std::string> makeCrl(const SignerFiles& signer, const std::vector<std::string>& serials);

/// Whole or not at all, and durable: a temporary file, synced, renamed.
Status writeFile(const std::string& path, const std::string& text, mode_t mode);

}  // namespace tidepool::ca
