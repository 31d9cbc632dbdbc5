// SPDX-License-Identifier: Apache-2.0
// How claims begin and end. Frames are given back after the words that name them have changed.
#include "runtime/migrate/core/far_claim.h"

#include <bitset>

namespace tidepool {
namespace {

PageWord wordOf(const Core& core, const FarClaim& claim, uint64_t at) {
  return core.space->word(claim.first + at);
}

void release(Core& core, const FarClaim& claim) {
  core.tiers.tier(claim.tier).release(claim.frames());
}

void wake(Core& core, const FarClaim& claim) {
  core.port->wake(core.space->addressOf(claim.first), toBytes(claim.count));
}

}  // namespace

FarClaim claimFar(Core& core, const GranuleLock& granule, PageRun run, uint8_t flags) {
  const PageWord head = core.space->word(run.first);
  FarClaim claim{run.first, PageCount(), head.tier(), head.frame()};
  uint64_t pages = 0;
  while (pages < run.count.value()) {
    const PageWord word = wordOf(core, claim, pages);
    if (word.state() != PageState::kFar || word.tier() != claim.tier ||
        word.frame() != claim.frame + pages) {
      break;
    }
    TP_CHECK(core.space->change(granule, claim.first + pages, word,
                                PageWord(PageState::kFetching, flags, word.tier(), word.index())));
    ++pages;
  }
  claim.count = PageCount(pages);
  return claim;
}

uint64_t stillClaimed(const Core& core, const FarClaim& claim, uint64_t at) {
  const uint64_t from = at;
  while (at < claim.count.value() && claim.owns(wordOf(core, claim, at), at)) ++at;
  return at - from;
}

void settleLocal(Core& core, const GranuleLock& granule, const FarClaim& claim, uint64_t asked,
                 FarCopy copy) {
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    const PageWord word = wordOf(core, claim, i);
    TP_CHECK(claim.owns(word, i));
    const uint8_t flags = (asked >> i & 1) != 0 ? 0 : static_cast<uint8_t>(kFlagUnproven);
    const PageWord local =
        copy == FarCopy::kKept
            ? PageWord(PageState::kLocal, flags | kFlagFarCopy, word.tier(), word.index())
            : PageWord(PageState::kLocal, flags, 0, 0);
    TP_CHECK(core.space->change(granule, claim.first + i, word, local));
  }
  if (copy == FarCopy::kDropped) release(core, claim);
}

void settleFar(Core& core, const GranuleLock& granule, const FarClaim& page, uint8_t tier,
               FrameIndex to) {
  const PageWord word = wordOf(core, page, 0);
  if (page.owns(word, 0)) {
    TP_CHECK(core.space->change(granule, page.first, word,
                                PageWord(PageState::kFar, 0, tier, to.value())));
  } else {
    core.tiers.tier(tier).release({to, PageCount(1)});
  }
  release(core, page);
  wake(core, page);
}

void settleGone(Core& core, const GranuleLock& granule, const FarClaim& claim) {
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    const PageWord word = wordOf(core, claim, i);
    if (claim.owns(word, i))
      TP_CHECK(core.space->change(granule, claim.first + i, word, PageWord()));
  }
  release(core, claim);
  wake(core, claim);
}

void abandonClaim(Core& core, const GranuleLock& granule, const FarClaim& claim) {
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    const PageWord word = wordOf(core, claim, i);
    if (claim.owns(word, i)) {
      TP_CHECK(core.space->change(granule, claim.first + i, word,
                                  PageWord(PageState::kFar, 0, word.tier(), word.index())));
    } else {
      release(core, claim.part(i, 1));
    }
  }
  wake(core, claim);
}

uint64_t countClaimed(const Core& core, const FarClaim& claim) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    count += claim.owns(wordOf(core, claim, i), i) ? 1 : 0;
  }
  return count;
}

void loseClaim(Core& core, const GranuleLock& granule, const FarClaim& claim) {
  std::bitset<kPagesPerGranule> lost;
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    const PageWord word = wordOf(core, claim, i);
    lost[i] = claim.owns(word, i);
    if (!lost[i]) continue;
    TP_CHECK(
        core.space->change(granule, claim.first + i, word, PageWord(PageState::kLost, 0, 0, 0)));
  }
  release(core, claim);
  // Last: it wakes who waits for one, and that may be the end of the program.
  for (uint64_t i = 0; i < claim.count.value(); ++i) {
    if (lost[i]) poisonPage(core, granule, claim.first + i);
  }
  wake(core, claim);
}

}  // namespace tidepool
