// SPDX-License-Identifier: Apache-2.0
// The fault service's reads from far memory: submission, prefetch, installation, and what happens
// to pages whose tier is gone. Runs on the fault service's thread only.
#include "runtime/migrate/fault_service.h"

#include <algorithm>

namespace tidepool {

FaultService::Answer FaultService::beginFetch(PageIndex page, PageWord word) {
  if (free_count_ == 0) return Answer::kDefer;
  const PageWord fetching(PageState::kFetching, 0, word.tier(), word.index());
  TP_CHECK(core_.space->change(page, word, fetching));
  if (!submitFetch(page, PageCount(1), Arrival::kFault)) {
    poisonPage(core_, page);
    return Answer::kDone;
  }
  return Answer::kFetching;
}

bool FaultService::submitFetch(PageIndex first, PageCount pages, Arrival arrival) {
  const PageWord word = core_.space->word(first);
  TP_CHECK(word.state() == PageState::kFetching && free_count_ > 0);
  const uint32_t slot = free_slots_[--free_count_];
  const uint64_t demanded = arrival == Arrival::kFault ? 1 : 0;
  fetches_[slot] = {first, pages, word.tier(), word.frame(), demanded, arrival, clock_.now()};
  const auto channel = channels_.to(word.tier());
  const Status submitted =
      channel ? (*channel)->submitRead(slot, {word.frame(), pages}, buffer(slot))
              : Status(tl::unexpected(channel.error()));
  if (submitted) return true;
  free_slots_[free_count_++] = slot;
  const Fetch failed = std::exchange(fetches_[slot], Fetch{});
  if (demanded != 0) {
    lose(failed, submitted.error().code());
  } else {
    abandon(failed, PageState::kFar);
  }
  return false;
}

void FaultService::prefetch(PageIndex from, PageCount count) {
  // Prefetch must not push out what the program uses: only into room that is there.
  uint64_t room = core_.budget.room().value();
  PageIndex page = from;
  const PageIndex end = std::min(from + count.value(), core_.space->highWater());
  while (page < end && free_count_ > 1 && room > kPagesPerFetch) {
    const PageIndex granule_end = firstPage(granuleOf(page) + 1);
    MutexLock lock(core_.space->lockOf(granuleOf(page)));
    while (page < end && page < granule_end && free_count_ > 1 && room > kPagesPerFetch) {
      const PageWord word = core_.space->word(page);
      if (word.state() != PageState::kFar) {
        ++page;
        continue;
      }
      uint64_t run = 0;
      while (run < kPagesPerFetch && page + run < end && page + run < granule_end) {
        const PageWord next = core_.space->word(page + run);
        if (next.state() != PageState::kFar || next.tier() != word.tier() ||
            next.index() != word.index() + run) {
          break;
        }
        core_.space->change(
            page + run, next,
            PageWord(PageState::kFetching, kFlagUnproven, next.tier(), next.index()));
        ++run;
      }
      if (!submitFetch(page, PageCount(run), Arrival::kScan)) return;
      tidepool::count(core_.stats->prefetched_pages, run);
      MutexLock policy_lock(policy_.mutex());
      for (uint64_t i = 0; i < run; ++i) policy_.chooser().onPrefetched(page + i);
      room -= run;
      page = page + run;
    }
  }
}

void FaultService::prefetchBeside(PageIndex page, PageRun run) {
  if (run.first == page) {
    prefetch(page + 1, PageCount(run.count.value() - 1));
    return;
  }
  for (PageIndex end = page; end > run.first;) {
    const uint64_t piece = std::min(kPagesPerFetch, end - run.first);
    end = end - piece;
    prefetch(end, PageCount(piece));
  }
}

void FaultService::completeFetches() {
  std::array<FetchCompletion, kFetches> completions;
  for (const auto& channel : channels_) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    const size_t got = channel->poll(completions);
    for (size_t i = 0; i < got; ++i) {
      finishFetch(static_cast<uint32_t>(completions[i].tag), completions[i].ok(),
                  completions[i].error);
    }
  }
}

void FaultService::finishFetch(uint32_t slot, bool ok, ErrorCode error) {
  Fetch& fetch = fetches_[slot];
  TP_CHECK(fetch.count.value() > 0);
  if (!ok) {
    {
      MutexLock lock(core_.space->lockOf(granuleOf(fetch.first)));
      if (fetch.demanded != 0) {
        lose(fetch, error);
      } else {
        abandon(fetch, PageState::kFar);
      }
    }
    fetch = Fetch{};
    free_slots_[free_count_++] = slot;
    return;
  }
  if (!install(fetch, slot)) {
    arrived_.push_back(slot);
    core_.faults_wait.store(true, std::memory_order_seq_cst);
    core_.need_memory.ring();
  }
}

bool FaultService::install(Fetch& fetch, uint32_t slot) {
  MutexLock lock(core_.space->lockOf(granuleOf(fetch.first)));
  if (!core_.budget.tryCharge(fetch.count)) {
    if (fetch.demanded != 0 && core_.roomWillCome()) return false;
    if (fetch.demanded == 0) {
      abandon(fetch, PageState::kFar);
      fetch = Fetch{};
      free_slots_[free_count_++] = slot;
      return true;
    }
    core_.budget.charge(fetch.count);
  }
  const bool keep = keepsCopies(fetch);
  // Pages discarded meanwhile split the run; what is left of it goes in piece by piece.
  uint64_t from = 0;
  while (from < fetch.count.value()) {
    uint64_t to = from;
    while (to < fetch.count.value()) {
      const PageWord word = core_.space->word(fetch.first + to);
      if (word.state() != PageState::kFetching || word.index() != fetch.frame.value() + to) break;
      ++to;
    }
    if (to > from) installRun(fetch, slot, from, to, keep);
    if (to < fetch.count.value()) {
      core_.budget.discharge(PageCount(1));
      releaseFrames(fetch, to, 1);
      core_.port->wake(core_.space->addressOf(fetch.first + to), Bytes(kPageSize));
      ++to;
    }
    from = to;
  }
  if (fetch.demanded != 0) recordLatency(fetch.started);
  fetch = Fetch{};
  free_slots_[free_count_++] = slot;
  return true;
}

bool FaultService::keepsCopies(const Fetch& fetch) {
  if (!core_.port->tracksWrites()) return false;
  // Copies must not take the room that pages need which have no other home.
  const Tier& tier = core_.tiers.tier(fetch.tier);
  if (tier.closed() || tier.used().value() > tier.capacity().value() / 8 * 7) return false;
  MutexLock lock(policy_.mutex());
  return policy_.copies().worthKeeping(granuleOf(fetch.first), fetch.arrival);
}

void FaultService::releaseFrames(const Fetch& fetch, uint64_t at, uint64_t pages) {
  core_.tiers.tier(fetch.tier).release({fetch.frame + at, PageCount(pages)});
}

void FaultService::installRun(const Fetch& fetch, uint32_t slot, uint64_t from, uint64_t to,
                              bool keep) {
  uint64_t at = from;
  while (at < to) {
    const PortResult copied = copyAll(*core_.port, core_.space->addressOf(fetch.first + at),
                                      buffer(slot) + at * kPageSize, Bytes((to - at) * kPageSize),
                                      Wake::kNo, keep ? Arm::kYes : Arm::kNo);
    const uint64_t done = toPages(copied.done).value();
    for (uint64_t i = at; i < at + done; ++i) {
      const PageWord word = core_.space->word(fetch.first + i);
      const bool asked = (fetch.demanded >> i & 1) != 0;
      const uint8_t flags = asked ? 0 : static_cast<uint8_t>(kFlagUnproven);
      const PageWord local =
          keep ? PageWord(PageState::kLocal, flags | kFlagFarCopy, word.tier(), word.index())
               : PageWord(PageState::kLocal, flags, 0, 0);
      core_.space->change(fetch.first + i, word, local);
    }
    if (done > 0) wake(fetch.first + at, PageCount(done));
    if (done > 0 && !keep) releaseFrames(fetch, at, done);
    at += done;
    if (copied.outcome == PortOutcome::kDone) continue;
    // The page cannot be filled: its range was released under the reader. Its content is dropped
    // with it, and the waiter meets whatever the program put there.
    core_.space->change(fetch.first + at, core_.space->word(fetch.first + at), PageWord());
    releaseFrames(fetch, at, 1);
    core_.budget.discharge(PageCount(1));
    core_.port->wake(core_.space->addressOf(fetch.first + at), Bytes(kPageSize));
    ++at;
  }
  count(core_.stats->promotions, to - from);
  count(core_.stats->promoted_bytes, (to - from) * kPageSize);
}

void FaultService::abandon(const Fetch& fetch, PageState outcome) {
  for (uint64_t i = 0; i < fetch.count.value(); ++i) {
    const PageIndex page = fetch.first + i;
    const PageWord word = core_.space->word(page);
    const uint64_t frame = fetch.frame.value() + i;
    if (word.state() == PageState::kFetching && word.index() == frame) {
      core_.space->change(page, word, PageWord(outcome, 0, fetch.tier, frame));
    } else {
      core_.tiers.tier(fetch.tier).release({FrameIndex(frame), PageCount(1)});
    }
    core_.port->wake(core_.space->addressOf(page), Bytes(kPageSize));
  }
}

void FaultService::lose(const Fetch& fetch, ErrorCode error) {
  const uint64_t before =
      core_.stats->lost_pages.fetch_add(fetch.count.value(), std::memory_order_relaxed);
  if (before == 0) {
    reportError(core_,
                "far memory %s is lost (%s): pages that live there end in SIGBUS when touched; "
                "restart the program once the memory server is back",
                core_.tiers.tier(fetch.tier).name(), errorCodeName(error));
  }
  for (uint64_t i = 0; i < fetch.count.value(); ++i) {
    const PageIndex page = fetch.first + i;
    const PageWord word = core_.space->word(page);
    if (word.state() != PageState::kFetching || word.index() != fetch.frame.value() + i) continue;
    core_.space->change(page, word, PageWord(PageState::kLost, 0, fetch.tier, word.index()));
    poisonPage(core_, page);
  }
}

}  // namespace tidepool
