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
  std::string certificate, key;
  std::string serial;     // hexadecimal
  std::string not_after;  // 2027-01-31T00:00:00Z
};

Result<PemPair> makeRoot(int64_t valid_seconds);
Result<PemPair> makeCertificate(const std::string& ca_certificate, const std::string& ca_key,
                                const Issue& what);
/// Good for as long as the root: a list that runs out would lock every agent out.
Result<std::string> makeCrl(const std::string& ca_certificate, const std::string& ca_key,
                            const std::vector<std::string>& serials);

/// Whole or not at all, and durable: a temporary file, synced, renamed.
Status writeFile(const std::string& path, const std::string& text, mode_t mode);

}  // namespace tidepool::ca
