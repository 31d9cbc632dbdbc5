// SPDX-License-Identifier: Apache-2.0
// What libtidepool-seal.so gives to the runtime, which loads it when pages are to be sealed:
// AES-256 in Galois/Counter Mode, by OpenSSL. An interface between two parts of one build, in plain
// C types.
#pragma once

#include <cstdint>

extern "C" {

/// A cipher belongs to one thread at a time; different ones are independent. Only open() and
/// close() allocate. Keys have 32 bytes, nonces 12, tags 16.
struct TidepoolSealApi {
  /// Null: no memory.
  void* (*open)(const void* key);
  void (*close)(void* cipher);
  /// Writes `bytes` to `sealed`, and the tag. Never twice with one nonce, unless of the same bytes.
  /// The two do not overlap. False: OpenSSL refused.
  bool (*seal)(void* cipher, const void* nonce, const void* plain, uint32_t bytes, void* sealed,
               void* tag);
  /// The reverse. False: these are not the bytes that were sealed so; what is in `plain` is then
  /// not to be used.
  bool (*unseal)(void* cipher, const void* nonce, const void* sealed, uint32_t bytes,
                 const void* tag, void* plain);
};

/// The only name that the library exports. Null: OpenSSL cannot do it here.
using TidepoolSealFunction = const TidepoolSealApi*();
}
