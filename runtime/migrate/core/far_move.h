// SPDX-License-Identifier: Apache-2.0
// Far pages on their way to frames of another fetch tier: claimed as if they were being fetched, so
// that a thread that touches one waits for it; read and written without a granule's lock; and then
// named at their new frames. Pages that are discarded meanwhile have another word by then, and
// their frames are given back.
#pragma once

#include <span>
#include <vector>

#include "runtime/base/mapping.h"
#include "runtime/migrate/core/channels.h"
#include "runtime/migrate/core/core.h"
#include "runtime/migrate/core/far_claim.h"

namespace tidepool {

/// Whether any fetch tier has room.
bool fetchTierTakesPages(const Core& core);

/// A batch of pages of one tier. Those that have arrived elsewhere are its first. Owned by one
/// thread. What is left must be abandoned before it is destroyed. Allocates in create() alone.
class FarMove {
 public:
  /// Of so many pages at most; each takes a page of memory once it has been read. `core` must
  /// outlive it. Errors: kNoMemory.
  static Result<FarMove> create(Core& core, uint64_t most);

  bool empty() const { return begin_ == pages_.size(); }
  bool full() const { return pages_.size() == to_.size(); }
  /// The page is far, in the same tier as the others.
  void claim(const GranuleLock& granule, PageIndex page);
  /// Reads what was claimed; blocks until done. Errors: as Tier::read().
  Status read();
  /// Takes as many frames as are needed, or as there are, in the first tier but `except` that has
  /// any. False: none has.
  bool findFrames(uint8_t except = 0);
  /// Of the frames that were found: their tier, and whether any was taken away from this process.
  uint8_t tier() const { return tier_; }
  bool forsaken() const;
  /// Writes to the frames that were found; blocks until done. Errors: as Tier::write().
  Status write();
  /// The same without waiting, in one request of FetchChannel::kMostScattered pages at most: who
  /// gets its completion settles the pages, or says that it failed. Errors: as Channels::to() and
  /// FetchChannel::submitWriteScattered().
  Status submit(Channels& channels, uint64_t tag);
  /// The pages are at the frames that were found; calls `act(page)` for each.
  template <typename Act>
  void settle(Act act) {
    for (; begin_ < found_; ++begin_) {
      const PageIndex page = pages_[begin_].first();
      pages_[begin_].settleFar(core_, GranuleLock(*core_.space, granuleOf(page)), tier_,
                               to_[begin_]);
      act(page);
    }
  }
  /// The frames could not be written: closes their tier, which is said once.
  void writeFailed(const char* reason);
  /// What is left stays where it was, and frames found for it are given back; the batch is empty.
  void abandon();

  /// Claims of what is left, for who brings it in or loses it; and the bytes of one of them.
  std::span<FarClaim> left() { return std::span(pages_).subspan(begin_); }
  const std::byte* bytesOf(const FarClaim& page) const {
    return bytes_.data() + static_cast<uint64_t>(&page - pages_.data()) * kPageSize;
  }
  Mapping& memory() { return bytes_; }

 private:
  FarMove(Core& core, uint64_t most, Mapping bytes)
      : core_(core), bytes_(std::move(bytes)), to_(most) {
    pages_.reserve(most);
  }
  /// Calls `act(run, bytes)` for pages whose frames are in a row, from the first that is left to
  /// `end`, until it fails.
  template <typename FrameOf, typename Act>
  Status forRuns(uint64_t end, FrameOf frameOf, Act act);

  Core& core_;
  Mapping bytes_;
  std::vector<FarClaim> pages_;  // of one page each
  std::vector<FrameIndex> to_;
  uint64_t begin_ = 0;  // of those that are left
  uint64_t found_ = 0;  // up to here they have frames
  uint8_t tier_ = 0;
};

}  // namespace tidepool
