// SPDX-License-Identifier: Apache-2.0
// Far pages that a service thread has taken in hand, to bring them in or to move them to other
// frames. Their words say kFetching, so that whoever touches one waits. The program may discard
// them meanwhile, fill them anew and have them evicted and fetched again; but the frames stay the
// claim's until it ends, and no other word can name them: tier and frame tell whose a page is.
// Every page of a claim ends by exactly one of the calls below, which sees to its frame too.
#pragma once

#include "runtime/migrate/core/core.h"
#include "runtime/policy/stream.h"

namespace tidepool {

/// Pages of one granule in a row, whose frames are in a row too. Owned by one thread.
struct FarClaim {
  PageIndex first;
  PageCount count;
  uint8_t tier = 0;
  FrameIndex frame;  // of the first

  bool empty() const { return count == PageCount(); }
  FarClaim part(uint64_t at, uint64_t pages) const {
    return {first + at, PageCount(pages), tier, frame + at};
  }
  FrameRun frames() const { return {frame, count}; }
  /// Whether this is the word of page `at` of the claim, and not of something that came after it.
  bool owns(PageWord word, uint64_t at) const {
    return word.state() == PageState::kFetching && word.tier() == tier &&
           word.frame() == frame + at;
  }
};

/// Claims the pages at the head of the run that are far and whose frames are in a row; an empty
/// claim if the first is not far. `flags` are for their words.
FarClaim claimFar(Core& core, const GranuleLock& granule, PageRun run, uint8_t flags = 0);

/// How many pages from `at` on, in a row, are the claim's still.
uint64_t stillClaimed(const Core& core, const FarClaim& claim, uint64_t at);

/// How many pages in all are the claim's still.
uint64_t countClaimed(const Core& core, const FarClaim& claim);

enum class FarCopy : uint8_t { kDropped, kKept };

/// They have been filled and are local from now on; all must be claimed still. Bit i of `asked`:
/// somebody waits for page i. Wakes nobody. kKept: they keep their frames, as copies.
void settleLocal(Core& core, const GranuleLock& granule, const FarClaim& claim, uint64_t asked,
                 FarCopy copy);
/// One page, whose bytes are in another frame now. That frame is given back if the page is not the
/// claim's any more.
void settleFar(Core& core, const GranuleLock& granule, const FarClaim& page, uint8_t tier,
               FrameIndex to);
/// They cannot be filled, since their range was released: their content goes with it. Also for
/// pages that were discarded before.
void settleGone(Core& core, const GranuleLock& granule, const FarClaim& claim);
/// They stay where they were.
void abandonClaim(Core& core, const GranuleLock& granule, const FarClaim& claim);
/// Their bytes cannot be had: from now on a touch of one ends the program.
void loseClaim(Core& core, const GranuleLock& granule, const FarClaim& claim);

}  // namespace tidepool
