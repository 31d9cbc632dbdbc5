// SPDX-License-Identifier: Apache-2.0
// Advice of the program: queueing it, and paging out. See advice.h; fetching is in
// fault_service.cc.
#include "runtime/migrate/evict/advice.h"

#include "runtime/migrate/core/staging.h"

namespace tidepool {
namespace {

/// Calls `act(part)` for the part of the run in each granule.
template <typename Act>
void forGranules(PageRun run, Act act) {
  const PageIndex end = run.first + run.count.value();
  for (PageIndex page = run.first; page < end;) {
    const PageIndex next = std::min(end, firstPage(granuleOf(page) + 1));
    act(PageRun{page, PageCount(next - page)});
    page = next;
  }
}

}  // namespace

PageRun Advice::pagesOf(uintptr_t address, Bytes size) const {
  return {core_.space->pageAt(address), toPages(size)};
}

bool Advice::goesToFetchTier(PageIndex page, PageWord word) const {
  // Pages with a home in a direct tier go there.
  return word.state() == PageState::kLocal && !word.has(kFlagShadow) && core_.tiers.hasFetch() &&
         !placementOf(core_, page).isLocal();
}

void Advice::cold(uintptr_t address, Bytes size) {
  if (!active()) return;
  forGranules(pagesOf(address, size), [this](PageRun part) {
    MutexLock lock(policy_.mutex());
    for (uint64_t i = 0; i < part.count.value(); ++i) {
      const PageIndex page = part.first + i;
      if (goesToFetchTier(page, core_.space->word(page))) policy_.chooser().onCold(page);
    }
  });
}

void Advice::pageOut(uintptr_t address, Bytes size) {
  if (!active()) return;
  forGranules(pagesOf(address, size), [this](PageRun part) {
    part = fromFirst(part, [](PageState state) { return state == PageState::kLocal; });
    MutexLock lock(policy_.mutex());
    policy_.pageOut().push(part);
  });
  core_.need_memory.ring();
}

void Advice::willNeed(uintptr_t address, Bytes size) {
  if (!active() || !core_.tiers.hasFetch()) return;
  forGranules(pagesOf(address, size), [this](PageRun part) {
    part = fromFirst(part, [](PageState state) {
      return state == PageState::kFar || state == PageState::kEvicting;
    });
    MutexLock lock(policy_.mutex());
    policy_.willNeed().push(part);
  });
  core_.freed_memory.ring();
}

PageRun Advice::fromFirst(PageRun part, bool (*wanted)(PageState)) const {
  uint64_t skip = 0;
  while (skip < part.count.value() && !wanted(core_.space->word(part.first + skip).state())) ++skip;
  return {part.first + skip, part.count - PageCount(skip)};
}

PageCount Advice::giveUp(PageRun piece) {
  MutexLock lock(policy_.mutex());
  uint64_t count = 0;
  for (uint64_t i = 0; i < piece.count.value(); ++i) {
    const PageIndex page = piece.first + i;
    if (!goesToFetchTier(page, core_.space->word(page))) continue;
    policy_.chooser().onGivenUp(page);
    ++count;
  }
  if (count > 0) policy_.chooser().streams().giveUp(piece);
  return PageCount(count);
}

void Advice::demoteHome(PageRun piece) {
  if (!core_.tiers.hasDirect() || placementOf(core_, piece.first).isLocal()) return;
  const GranuleLock granule(*core_.space, granuleOf(piece.first));
  const auto stays = [&](uint64_t at) {
    const PageIndex page = piece.first + at;
    const PageWord word = core_.space->word(page);
    return word.state() != PageState::kLocal || goesToFetchTier(page, word);
  };
  for (uint64_t at = 0; at < piece.count.value();) {
    uint64_t run = 0;
    while (at + run < piece.count.value() && !stays(at + run)) ++run;
    if (run > 0) demoter_.demote(granule, piece.first + at, run);
    at += run + 1;
  }
}

bool Advice::moveOutSome(Evictor& evictor) {
  PageRun piece;
  {
    MutexLock lock(policy_.mutex());
    piece = policy_.pageOut().front(PageCount(Staging::kSlotsPerSegment));
  }
  if (piece.count.value() == 0) return false;
  const PageCount out = giveUp(piece);
  if (out.value() > 0 && evictor.usable() && evictor.start(out).value() == 0) {
    // Every staging segment is in use. One that is written serves better for this than as limbo; if
    // none is, the end of a write calls again.
    if (evictor.recycle()) return true;
    if (evictor.busy()) return false;
  }
  demoteHome(piece);
  MutexLock lock(policy_.mutex());
  policy_.pageOut().drop(piece);
  return !policy_.pageOut().empty();
}

}  // namespace tidepool
