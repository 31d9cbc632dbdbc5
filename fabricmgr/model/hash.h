// SPDX-License-Identifier: Apache-2.0
// SHA-256 by libcrypto, whole or in pieces. Not thread-safe; hashes are 32 bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fabricmgr/model/records.h"

struct evp_md_ctx_st;

namespace tidepool::fabric {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// As "<length>:<text>," so that no two lists of fields hash alike.
  void addField(std::string_view text);
  void addField(uint64_t number) { addField(std::to_string(number)); }
  /// Ends it; add() begins the next one.
  Digest finish();

 private:
  void begin();
  evp_md_ctx_st* context_;
};

/// HMAC-SHA-256: proves that its maker has the key.
Digest hmacSha256(std::string_view key, std::string_view text);

std::string hexOf(std::span<const uint8_t> bytes);

}  // namespace tidepool::fabric
