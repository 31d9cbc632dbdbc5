// SPDX-License-Identifier: Apache-2.0
// Seals pages that leave the host with AES-256-GCM, so that who keeps them can neither read them
// nor change them unnoticed. A sealed page is as long as the page and its tag. One thread at a
// time; allocates in create() alone.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/transport/seal/seal_api.h"

namespace tidepool {

class PageCipher {
 public:
  static constexpr uint64_t kTagSize = 16;
  static constexpr uint64_t kSealedSize = kPageSize + kTagSize;
  using Key = std::array<std::byte, 32>;
  using Nonce = std::array<std::byte, 12>;

  /// `key` is not needed any more afterwards. The first in a process loads libtidepool-seal.so,
  /// from beside the library or program that this is part of. Errors: kUnsupported when it is not
  /// there, kNoMemory.
  static Result<PageCipher> create(const Key& key);

  /// From `page` (kPageSize bytes) to `sealed` (kSealedSize). No two pages may have the same nonce.
  /// False: the library refused; nothing of `sealed` is to be sent.
  bool seal(const Nonce& nonce, const std::byte* page, std::byte* sealed);
  /// The reverse. False, and `page` is zeros: this is not what was sealed with that nonce.
  bool unseal(const Nonce& nonce, const std::byte* sealed, std::byte* page);

 private:
  struct Close {
    const TidepoolSealApi* api;
    void operator()(void* cipher) const { api->close(cipher); }
  };
  explicit PageCipher(std::unique_ptr<void, Close> cipher) : cipher_(std::move(cipher)) {}
  const TidepoolSealApi& api() const { return *cipher_.get_deleter().api; }

  std::unique_ptr<void, Close> cipher_;
};

}  // namespace tidepool
