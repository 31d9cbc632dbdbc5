// SPDX-License-Identifier: Apache-2.0
// What a process and all that it forks know of the sealed pages in one region of a memory server,
// and the server does not: the key, and how often each frame has been written. A frame's nonce is
// its number and that count, so that no two pages have the same, whoever writes, and whether or not
// a write reached the server; and of a frame only the last page verifies. Also for regions that
// follow one another, as on a side of a mirror: the counts go on, so nothing of an earlier one
// verifies. Four bytes a frame, in memory that the processes share. Thread-safe; allocates in
// create() alone.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>

#include "runtime/base/debug_check.h"
#include "runtime/base/mapping.h"
#include "runtime/transport/seal/page_cipher.h"

namespace tidepool {

class RegionSeal {
 public:
  /// Of frames that have never been written to, with a new key. Errors: kNoMemory, kInternal (the
  /// system has no random bytes).
  static Result<std::unique_ptr<RegionSeal>> create(PageCount frames);
  ~RegionSeal();
  /// Pages and their tags that a region of that size holds.
  static PageCount framesIn(Bytes region) {
    return PageCount(region.value() / PageCipher::kSealedSize);
  }
  /// The smallest region that holds so many.
  static Bytes regionFor(PageCount frames) {
    return Bytes(roundUp(frames.value() * PageCipher::kSealedSize, kPageSize));
  }

  /// Errors: as PageCipher::create().
  Result<PageCipher> openCipher() const { return PageCipher::create(key()); }
  /// For the page that is now going to be written there, by the frame's only holder: what was in
  /// the frame before does not verify any more. None once it has been written 2^32 - 1 times.
  std::optional<PageCipher::Nonce> nextNonce(FrameIndex frame);
  /// Of the page that was written there last. None: nobody has written there.
  std::optional<PageCipher::Nonce> lastNonce(FrameIndex frame) const;

  using Version = std::atomic<uint32_t>;
  /// The next number, which nobody else gets. None: there is no other.
  static std::optional<uint32_t> next(Version& version);

 private:
  RegionSeal(Mapping key, Mapping versions) : key_(std::move(key)), memory_(std::move(versions)) {}
  PageCipher::Key& key() const { return *reinterpret_cast<PageCipher::Key*>(key_.data()); }
  Version& version(FrameIndex frame) const {
    TP_DCHECK((frame.value() + 1) * sizeof(Version) <= memory_.size().value());
    return reinterpret_cast<Version*>(memory_.data())[frame.value()];
  }
  static PageCipher::Nonce nonceOf(FrameIndex frame, uint32_t version);

  const Mapping key_;     // in no core dump
  const Mapping memory_;  // zeros at first
};

}  // namespace tidepool
