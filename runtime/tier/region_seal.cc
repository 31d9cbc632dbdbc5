// SPDX-License-Identifier: Apache-2.0
// RegionSeal: the key, and counting.
#include "runtime/tier/region_seal.h"

#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/raw_calls.h"

namespace tidepool {

Result<std::unique_ptr<RegionSeal>> RegionSeal::create(PageCount frames) {
  auto key = Mapping::anonymous(Bytes(kPageSize));
  if (!key) return tl::unexpected(key.error());
  auto versions =
      Mapping::sharedAnonymous(Bytes(roundUp(frames.value() * sizeof(Version), kPageSize)));
  if (!versions) return tl::unexpected(versions.error());
  constexpr long kBytes = sizeof(PageCipher::Key);
  long got = 0;
  do {
    got = raw::call(SYS_getrandom, key->data(), kBytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got != kBytes) return failErrno(ErrorCode::kInternal, "no random bytes for a key");
  return std::unique_ptr<RegionSeal>(new RegionSeal(std::move(*key), std::move(*versions)));
}

RegionSeal::~RegionSeal() { explicit_bzero(key_.data(), sizeof(PageCipher::Key)); }

PageCipher::Nonce RegionSeal::nonceOf(FrameIndex frame, uint32_t version) {
  PageCipher::Nonce nonce;
  const uint64_t number = frame.value();
  static_assert(sizeof number + sizeof version == sizeof nonce);
  memcpy(nonce.data(), &number, sizeof number);
  memcpy(nonce.data() + sizeof number, &version, sizeof version);
  return nonce;
}

std::optional<uint32_t> RegionSeal::next(Version& version) {
  // Release, for lastNonce(): who makes a mirror's second copy reads frames while they are written,
  // and then finds what the writer has marked before. One step: a process that is killed here has
  // either counted or sent nothing.
  uint32_t before = version.load(std::memory_order_relaxed);
  do {
    if (before == std::numeric_limits<uint32_t>::max()) return std::nullopt;
  } while (!version.compare_exchange_weak(before, before + 1, std::memory_order_release,
                                          std::memory_order_relaxed));
  return before + 1;
}

std::optional<PageCipher::Nonce> RegionSeal::nextNonce(FrameIndex frame) {
  const auto number = next(version(frame));
  if (!number) return std::nullopt;
  return nonceOf(frame, *number);
}

std::optional<PageCipher::Nonce> RegionSeal::lastNonce(FrameIndex frame) const {
  const uint32_t last = version(frame).load(std::memory_order_acquire);  // pairs with next()
  if (last == 0) return std::nullopt;
  return nonceOf(frame, last);
}

}  // namespace tidepool
