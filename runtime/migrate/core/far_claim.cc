// SPDX-License-Identifier: Apache-2.0
// How claims begin and end. Frames are given back after the words that name them have changed.
#include "runtime/migrate/core/far_claim.h"

#include <bitset>

namespace tidepool {

FarClaim claimFar(Core& core, const GranuleLock& granule, PageRun run, uint8_t flags) {
  TP_CHECK(granule.covers(run.first) && run.first + run.count.value() <= granule.end());
  const PageWord head = core.space->word(run.first);
  FarClaim claim;
  claim.first_ = run.first;
  claim.tier_ = head.tier();
  claim.frame_ = head.frame();
  while (claim.count_ < run.count) {
    const uint64_t at = claim.count_.value();
    const PageWord word = claim.wordOf(core, at);
    if (word.state() != PageState::kFar || word.tier() != claim.tier_ ||
        word.frame() != claim.frame_ + at) {
      break;
    }
    TP_CHECK(core.space->change(granule, run.first + at, word,
                                PageWord(PageState::kFetching, flags, word.tier(), word.index())));
    claim.count_ += PageCount(1);
  }
  return claim;
}

uint64_t FarClaim::stillClaimed(const Core& core) const {
  uint64_t at = 0;
  while (at < count_.value() && owns(wordOf(core, at), at)) ++at;
  return at;
}

uint64_t FarClaim::countClaimed(const Core& core) const {
  uint64_t count = 0;
  for (uint64_t i = 0; i < count_.value(); ++i) count += owns(wordOf(core, i), i) ? 1 : 0;
  return count;
}

void FarClaim::settleLocal(Core& core, const GranuleLock& granule, PageCount pages, uint64_t asked,
                           FarCopy copy) {
  TP_CHECK(pages <= count_);
  for (uint64_t i = 0; i < pages.value(); ++i) {
    const PageWord word = wordOf(core, i);
    TP_CHECK(owns(word, i));
    const uint8_t flags = (asked >> i & 1) != 0 ? 0 : static_cast<uint8_t>(kFlagUnproven);
    const PageWord local =
        copy == FarCopy::kKept
            ? PageWord(PageState::kLocal, flags | kFlagFarCopy, word.tier(), word.index())
            : PageWord(PageState::kLocal, flags, 0, 0);
    TP_CHECK(core.space->change(granule, first_ + i, word, local));
  }
  if (copy == FarCopy::kDropped) release(core, pages);
  end(pages);
}

void FarClaim::settleFar(Core& core, const GranuleLock& granule, uint8_t tier, FrameIndex to) {
  TP_CHECK(!empty());
  TP_CHECK(tier != 0 && (tier != tier_ || to != frame_));
  const PageWord word = wordOf(core, 0);
  if (owns(word, 0)) {
    TP_CHECK(
        core.space->change(granule, first_, word, PageWord(PageState::kFar, 0, tier, to.value())));
  } else {
    core.tiers.tier(tier).release({to, PageCount(1)});
  }
  release(core, PageCount(1));
  wake(core, PageCount(1));
  end(PageCount(1));
}

void FarClaim::settleGone(Core& core, const GranuleLock& granule) {
  TP_CHECK(!empty());
  const PageWord word = wordOf(core, 0);
  if (owns(word, 0)) TP_CHECK(core.space->change(granule, first_, word, PageWord()));
  release(core, PageCount(1));
  wake(core, PageCount(1));
  end(PageCount(1));
}

void FarClaim::abandon(Core& core, const GranuleLock& granule) {
  for (uint64_t i = 0; i < count_.value(); ++i) {
    const PageWord word = wordOf(core, i);
    if (owns(word, i)) {
      TP_CHECK(core.space->change(granule, first_ + i, word,
                                  PageWord(PageState::kFar, 0, word.tier(), word.index())));
    } else {
      core.tiers.tier(tier_).release({frame_ + i, PageCount(1)});
    }
  }
  wake(core, count_);
  end(count_);
}

void FarClaim::lose(Core& core, const GranuleLock& granule) {
  std::bitset<kPagesPerGranule> lost;
  for (uint64_t i = 0; i < count_.value(); ++i) {
    const PageWord word = wordOf(core, i);
    lost[i] = owns(word, i);
    if (!lost[i]) continue;
    TP_CHECK(core.space->change(granule, first_ + i, word, PageWord(PageState::kLost, 0, 0, 0)));
  }
  release(core, count_);
  // Last: it wakes who waits for one, and that may be the end of the program.
  for (uint64_t i = 0; i < count_.value(); ++i) {
    if (lost[i]) poisonPage(core, granule, first_ + i);
  }
  wake(core, count_);
  end(count_);
}

}  // namespace tidepool
