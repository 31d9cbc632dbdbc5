// SPDX-License-Identifier: Apache-2.0
// The fault service's reads from far memory: submission, prefetch, installation, and what happens
// to pages whose tier is gone. Runs on the fault service's thread only.
#include "runtime/migrate/fault/fault_service.h"

#include <algorithm>

namespace tidepool {

FaultService::Answer FaultService::beginFetch(const GranuleLock& granule, PageIndex page) {
  if (free_count_ == 0) return Answer::kAwaitSlot;
  const FarClaim claim = claimFar(core_, granule, {page, PageCount(1)});
  return submitFetch(granule, claim, Arrival::kFault) ? Answer::kFetching : Answer::kDone;
}

bool FaultService::submitFetch(const GranuleLock& granule, const FarClaim& claim, Arrival arrival) {
  TP_CHECK(!claim.empty() && free_count_ > 0);
  const uint32_t slot = free_slots_[--free_count_];
  const uint64_t demanded = arrival == Arrival::kFault ? 1 : 0;
  fetches_[slot] = {claim, buffer(slot), demanded, arrival, clock_.now()};
  const auto channel = channels_.to(claim.tier);
  const Status submitted = channel ? (*channel)->submitRead(slot, claim.frames(), buffer(slot))
                                   : Status(tl::unexpected(channel.error()));
  if (submitted) return true;
  giveUp(granule, fetches_[slot], submitted.error().code());
  freeSlot(slot);
  return false;
}

void FaultService::freeSlot(uint32_t slot) {
  fetches_[slot] = Fetch{};
  free_slots_[free_count_++] = slot;
}

void FaultService::giveUp(const GranuleLock& granule, const Fetch& fetch, ErrorCode error) {
  // What nobody waits for may be had when somebody does.
  if (fetch.demanded == 0) return abandonClaim(core_, granule, fetch.claim);
  const uint64_t lost = countClaimed(core_, fetch.claim);
  // Said before: the touch ends the program.
  if (core_.stats->lost_pages.fetch_add(lost, std::memory_order_relaxed) == 0 && lost > 0) {
    reportError(core_,
                "far memory %s is lost (%s): pages that live there end in SIGBUS when touched; "
                "restart the program once the memory server is back",
                core_.tiers.tier(fetch.claim.tier).name(), errorCodeName(error));
  }
  loseClaim(core_, granule, fetch.claim);
}

void FaultService::prefetch(PageIndex from, PageCount count) {
  // Prefetch must not push out what the program uses: only into room that is there.
  uint64_t room = core_.budget.room().value();
  PageIndex page = from;
  const PageIndex end = std::min(from + count.value(), core_.space->highWater());
  while (page < end && free_count_ > 1 && room > kPagesPerFetch) {
    const GranuleLock granule(*core_.space, granuleOf(page));
    while (page < end && page < granule.end() && free_count_ > 1 && room > kPagesPerFetch) {
      const PageIndex stop = std::min({end, granule.end(), page + kPagesPerFetch});
      const FarClaim claim =
          claimFar(core_, granule, {page, PageCount(stop - page)}, kFlagUnproven);
      if (claim.empty()) {
        ++page;
        continue;
      }
      if (!submitFetch(granule, claim, Arrival::kScan)) return;
      const uint64_t run = claim.count.value();
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

void FaultService::foretell(const MissingFault& fault, Nanoseconds started) {
  // The demanded page first: it is on its way while the next are found out.
  if (foreteller_->watching()) flush();
  const auto addresses = foreteller_->onFarFault(fault, roomToForetell(), started);
  if (!addresses.empty()) fetchForetold(addresses);
}

PageCount FaultService::roomToForetell() const {
  // As prefetch(): only into room that is there when all that was foretold has arrived.
  uint64_t taken = kPagesPerFetch;
  uint64_t free = 0;
  for (const Gather& gather : gathers_) {
    taken += gather.pages.size();
    free += gather.pages.empty() ? kPagesPerGather : 0;
  }
  const uint64_t room = core_.budget.room().value();
  return PageCount(std::min(room > taken ? room - taken : 0, free));
}

FaultService::Gather* FaultService::freeGather() {
  const auto found = std::find_if(gathers_.begin(), gathers_.end(),
                                  [](const Gather& gather) { return gather.pages.empty(); });
  return found == gathers_.end() ? nullptr : &*found;
}

void FaultService::fetchForetold(std::span<const uint64_t> addresses) {
  Gather* gather = freeGather();
  uint64_t most = kFirstGather;
  for (const uint64_t address : addresses) {
    if (gather == nullptr) break;
    if (!claimForetold(*gather, core_.space->pageAt(address))) continue;
    if (gather->pages.size() < most) continue;
    submitGather(*gather);
    most = kPagesPerGather;
    gather = freeGather();
  }
  if (gather != nullptr && !gather->pages.empty()) submitGather(*gather);
}

bool FaultService::claimForetold(Gather& gather, PageIndex page) {
  if (page >= core_.space->highWater()) return false;
  const GranuleLock granule(*core_.space, granuleOf(page));
  const PageWord word = core_.space->word(page);
  if (!gather.pages.empty() && word.tier() != gather.pages[0].claim.tier) return false;
  const FarClaim claim = claimFar(core_, granule, {page, PageCount(1)}, kFlagUnproven);
  if (claim.empty()) return false;
  const auto number = static_cast<uint64_t>(&gather - gathers_.data());
  const uint64_t at = kFetches * kPagesPerFetch + number * kPagesPerGather + gather.pages.size();
  gather.pages.push_back({.claim = claim,
                          .buffer = buffers_.data() + at * kPageSize,
                          .arrival = Arrival::kScan,
                          .started = clock_.now(),
                          .foretold = true});
  return true;
}

void FaultService::submitGather(Gather& gather) {
  std::array<FrameIndex, kPagesPerGather> frames;
  {
    MutexLock lock(policy_.mutex());
    for (size_t i = 0; i < gather.pages.size(); ++i) {
      const FarClaim& claim = gather.pages[i].claim;
      frames[i] = claim.frame;
      policy_.chooser().onForetold(claim.first);
    }
  }
  const uint64_t tag = kFetches + static_cast<uint64_t>(&gather - gathers_.data());
  const auto channel = channels_.to(gather.pages[0].claim.tier);
  const Status submitted =
      channel ? (*channel)->submitReadScattered(tag, std::span(frames).first(gather.pages.size()),
                                                gather.pages[0].buffer)
              : Status(tl::unexpected(channel.error()));
  gather.under_way = submitted.has_value();
  if (!submitted) finishGather(gather, false);
}

void FaultService::finishGather(Gather& gather, bool ok) {
  gather.under_way = false;
  std::erase_if(gather.pages, [&](Fetch& fetch) {
    if (ok) return install(fetch);
    // Whoever waits for one asks for it by itself, and then hears what is wrong with it.
    abandonClaim(core_, GranuleLock(*core_.space, granuleOf(fetch.claim.first)), fetch.claim);
    return true;
  });
  if (gather.pages.empty()) return;
  core_.faults_wait.store(true, std::memory_order_seq_cst);
  core_.need_memory.ring();
}

void FaultService::completeFetches() {
  std::array<FetchCompletion, kFetches> completions;
  for (const auto& channel : channels_) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    const size_t got = channel->poll(completions);
    for (size_t i = 0; i < got; ++i) {
      const auto tag = static_cast<uint32_t>(completions[i].tag);
      if (tag < kFetches) {
        finishFetch(tag, completions[i].ok(), completions[i].error);
        continue;
      }
      finishGather(gathers_[tag - kFetches], completions[i].ok());
    }
  }
}

void FaultService::finishFetch(uint32_t slot, bool ok, ErrorCode error) {
  const FarClaim& claim = fetches_[slot].claim;
  TP_CHECK(!claim.empty());
  if (!ok) {
    const GranuleLock granule(*core_.space, granuleOf(claim.first));
    giveUp(granule, fetches_[slot], error);
    return freeSlot(slot);
  }
  if (install(fetches_[slot])) {
    freeSlot(slot);
  } else {
    arrived_.push_back(slot);
    core_.faults_wait.store(true, std::memory_order_seq_cst);
    core_.need_memory.ring();
  }
}

bool FaultService::install(Fetch& fetch) {
  const FarClaim& claim = fetch.claim;
  const GranuleLock granule(*core_.space, granuleOf(claim.first));
  if (!core_.budget.tryCharge(claim.count)) {
    if (fetch.demanded != 0 && core_.roomWillCome()) return false;
    if (fetch.demanded == 0) {
      abandonClaim(core_, granule, claim);
      return true;
    }
    core_.budget.charge(claim.count);
  }
  const FarCopy copy = keepsCopies(fetch) ? FarCopy::kKept : FarCopy::kDropped;
  // Pages discarded meanwhile split the run; what is left of it goes in piece by piece.
  for (uint64_t at = 0; at < claim.count.value();) {
    const uint64_t run = stillClaimed(core_, claim, at);
    if (run > 0) {
      installRun(granule, fetch, at, at + run, copy);
      at += run;
    } else {
      core_.budget.discharge(PageCount(1));
      settleGone(core_, granule, claim.part(at++, 1));
    }
  }
  if (fetch.demanded != 0) recordLatency(fetch.started);
  return true;
}

bool FaultService::keepsCopies(const Fetch& fetch) {
  if (!core_.port->tracksWrites()) return false;
  // Copies must not take the room that pages need which have no other home.
  const Tier& tier = core_.tiers.tier(fetch.claim.tier);
  if (tier.closed() || tier.used().value() > tier.capacity().value() / 8 * 7) return false;
  MutexLock lock(policy_.mutex());
  return policy_.copies().worthKeeping(granuleOf(fetch.claim.first), fetch.arrival);
}

void FaultService::installRun(const GranuleLock& granule, const Fetch& fetch, uint64_t from,
                              uint64_t to, FarCopy copy) {
  const Arm arm = copy == FarCopy::kKept ? Arm::kYes : Arm::kNo;
  for (uint64_t at = from; at < to;) {
    const FarClaim rest = fetch.claim.part(at, to - at);
    const PortResult copied =
        copyAll(*core_.port, core_.space->addressOf(rest.first), fetch.buffer + at * kPageSize,
                toBytes(rest.count), Wake::kNo, arm);
    const PageCount done = toPages(copied.done);
    if (done > PageCount()) {
      settleLocal(core_, granule, rest.part(0, done.value()), fetch.demanded >> at, copy);
      // Whoever came to wait since the claim was noted; a fault not read yet will find it local.
      if (!fetch.foretold || fetch.demanded != 0) wake(rest.first, done);
    }
    at += done.value();
    if (copied.outcome == PortOutcome::kDone) continue;
    // The page cannot be filled: its range was released under the reader. The waiter meets whatever
    // the program put there.
    core_.budget.discharge(PageCount(1));
    settleGone(core_, granule, fetch.claim.part(at++, 1));
  }
  count(core_.stats->promotions, to - from);
  count(core_.stats->promoted_bytes, (to - from) * kPageSize);
}

}  // namespace tidepool
