// SPDX-License-Identifier: Apache-2.0
// libtidepool-seal.so: OpenSSL's AES-GCM behind a table of four functions. It has a libcrypto of
// its own, linked in, whose names nobody else sees: a program may bring another one, which would be
// bound to ours by its file's name, or call OPENSSL_cleanup() while pages are still needed.
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "runtime/transport/seal/seal_api.h"

namespace {

struct Cipher {
  EVP_CIPHER_CTX* seals;
  EVP_CIPHER_CTX* unseals;
};

EVP_CIPHER* algorithm = nullptr;

constexpr int kTag = 16;

void close(void* cipher) {
  auto* const both = static_cast<Cipher*>(cipher);
  if (both == nullptr) return;
  EVP_CIPHER_CTX_free(both->seals);  // which clear what they have of the key
  EVP_CIPHER_CTX_free(both->unseals);
  OPENSSL_free(both);
}

void* open(const void* key) {
  auto* const bytes = static_cast<const unsigned char*>(key);
  auto* const both = static_cast<Cipher*>(OPENSSL_zalloc(sizeof(Cipher)));
  if (both == nullptr) return nullptr;
  both->seals = EVP_CIPHER_CTX_new();
  both->unseals = EVP_CIPHER_CTX_new();
  if (both->seals != nullptr && both->unseals != nullptr &&
      EVP_EncryptInit_ex2(both->seals, algorithm, bytes, nullptr, nullptr) == 1 &&
      EVP_DecryptInit_ex2(both->unseals, algorithm, bytes, nullptr, nullptr) == 1) {
    return both;
  }
  close(both);
  return nullptr;
}

bool seal(void* cipher, const void* nonce, const void* plain, uint32_t bytes, void* sealed,
          void* tag) {
  EVP_CIPHER_CTX* const context = static_cast<Cipher*>(cipher)->seals;
  auto* const out = static_cast<unsigned char*>(sealed);
  int written = 0, rest = 0;
  return EVP_EncryptInit_ex2(context, nullptr, nullptr, static_cast<const unsigned char*>(nonce),
                             nullptr) == 1 &&
         EVP_EncryptUpdate(context, out, &written, static_cast<const unsigned char*>(plain),
                           static_cast<int>(bytes)) == 1 &&
         EVP_EncryptFinal_ex(context, out + written, &rest) == 1 &&
         written + rest == static_cast<int>(bytes) &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTag, tag) == 1;
}

bool unseal(void* cipher, const void* nonce, const void* sealed, uint32_t bytes, const void* tag,
            void* plain) {
  EVP_CIPHER_CTX* const context = static_cast<Cipher*>(cipher)->unseals;
  auto* const out = static_cast<unsigned char*>(plain);
  int written = 0, rest = 0;
  return EVP_DecryptInit_ex2(context, nullptr, nullptr, static_cast<const unsigned char*>(nonce),
                             nullptr) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTag, const_cast<void*>(tag)) == 1 &&
         EVP_DecryptUpdate(context, out, &written, static_cast<const unsigned char*>(sealed),
                           static_cast<int>(bytes)) == 1 &&
         EVP_DecryptFinal_ex(context, out + written, &rest) == 1 &&
         written + rest == static_cast<int>(bytes);
}

constexpr TidepoolSealApi kApi = {open, close, seal, unseal};

}  // namespace

/// By one thread at a time.
extern "C" __attribute__((visibility("default"))) const TidepoolSealApi* tidepoolSeal() {
  if (algorithm != nullptr) return &kApi;
  // No file is read, and nothing is undone at exit: pages are needed until the process has ended.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  algorithm = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  return algorithm != nullptr ? &kApi : nullptr;
}
