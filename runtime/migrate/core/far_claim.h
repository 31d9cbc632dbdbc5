// SPDX-License-Identifier: Apache-2.0
// Far pages that a service thread has taken in hand, to bring them in or to move them to other
// frames. Their words say kFetching, so that a thread that touches one waits. The program may
// discard them meanwhile, fill them anew and have them evicted and fetched again; but the frames
// stay the claim's until it ends, and no other word can name them: tier and frame tell whose a page
// is.
#pragma once

#include <utility>

#include "runtime/base/debug_check.h"
#include "runtime/migrate/core/core.h"
#include "runtime/policy/stream.h"

namespace tidepool {

enum class FarCopy : uint8_t { kDropped, kKept };

/// Pages of one granule in a row, whose frames are in a row too. Owned by one thread. Each page is
/// ended by exactly one of the calls below, the first of those that are left first; the call sees
/// to its frame. A claim that is destroyed, or overwritten, has no page left.
class FarClaim {
 public:
  FarClaim() = default;
  FarClaim(FarClaim&& other) noexcept { *this = std::move(other); }
  FarClaim& operator=(FarClaim&& other) noexcept {
    TP_CHECK(empty());
    first_ = other.first_;
    count_ = std::exchange(other.count_, PageCount());
    tier_ = other.tier_;
    frame_ = other.frame_;
    return *this;
  }
  ~FarClaim() { TP_CHECK(empty()); }

  // Of the pages that are left.
  PageIndex first() const { return first_; }
  PageCount count() const { return count_; }
  bool empty() const { return count_ == PageCount(); }
  uint8_t tier() const { return tier_; }
  FrameRun frames() const { return {frame_, count_}; }
  /// Whether this is the word of page `at` of the claim, and not of something that came after it.
  bool owns(PageWord word, uint64_t at) const {
    TP_DCHECK_OP(at, <, count_.value());
    return word.state() == PageState::kFetching && word.tier() == tier_ &&
           word.frame() == frame_ + at;
  }
  /// How many, from the first on, are the claim's still.
  uint64_t stillClaimed(const Core& core) const;
  /// How many in all are.
  uint64_t countClaimed(const Core& core) const;

  /// The first so many have been filled and are local from now on; all must be claimed still. Bit i
  /// of `asked`: somebody waits for page i. Wakes nobody. kKept: they keep their frames, as copies.
  void settleLocal(Core& core, const GranuleLock& granule, PageCount pages, uint64_t asked,
                   FarCopy copy);
  /// The first page's bytes are in another frame now. That frame is given back if the page is not
  /// the claim's any more.
  void settleFar(Core& core, const GranuleLock& granule, uint8_t tier, FrameIndex to);
  /// The first page cannot be filled, since its range was released: its content goes with it. Also
  /// for one that was discarded before.
  void settleGone(Core& core, const GranuleLock& granule);
  /// All stay where they were.
  void abandon(Core& core, const GranuleLock& granule);
  /// Their bytes cannot be had: from now on a touch of one ends the program.
  void lose(Core& core, const GranuleLock& granule);

 private:
  friend FarClaim claimFar(Core&, const GranuleLock&, PageRun, uint8_t);
  PageWord wordOf(const Core& core, uint64_t at) const { return core.space->word(first_ + at); }
  /// Gives the frames of the first so many back.
  void release(Core& core, PageCount pages) const {
    core.tiers.tier(tier_).release({frame_, pages});
  }
  void wake(Core& core, PageCount pages) const {
    core.port->wake(core.space->addressOf(first_), toBytes(pages));
  }
  void end(PageCount pages) {
    first_ = first_ + pages.value();
    frame_ = frame_ + pages.value();
    count_ = count_ - pages;
  }

  PageIndex first_;
  PageCount count_;
  uint8_t tier_ = 0;
  FrameIndex frame_;  // of the first
};

/// Claims the pages at the head of the run that are far and whose frames are in a row; an empty
/// claim if the first is not far. `flags` are for their words.
FarClaim claimFar(Core& core, const GranuleLock& granule, PageRun run, uint8_t flags = 0);

}  // namespace tidepool
