// SPDX-License-Identifier: Apache-2.0
// SHA-256 over OpenSSL's EVP interface. A failure inside of it (no memory) aborts: it is no
// input's.
#include "fabricmgr/model/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "runtime/base/check.h"

namespace tidepool::fabric {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) { begin(); }
Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::begin() { TP_CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1); }

void Sha256::add(std::span<const std::byte> bytes) {
  TP_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
}

void Sha256::addField(std::string_view text) {
  add(std::to_string(text.size()));
  add(":");
  add(text);
  add(",");
}

Digest Sha256::finish() {
  Digest digest;
  unsigned length = 0;
  TP_CHECK(EVP_DigestFinal_ex(context_, digest.data(), &length) == 1);
  TP_CHECK_OP(length, ==, digest.size());
  begin();
  return digest;
}

Digest hmacSha256(std::string_view key, std::string_view text) {
  Digest digest;
  unsigned length = 0;
  TP_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                &length) != nullptr);
  TP_CHECK_OP(length, ==, digest.size());
  return digest;
}

std::string hexOf(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tidepool::fabric
