// SPDX-License-Identifier: Apache-2.0
// The fault service's reads from far memory: submission, prefetch, installation, and what happens
// to pages whose tier is gone. Runs on the fault service's thread only.
#include "runtime/base/debug_check.h"
#include "runtime/migrate/fault/fault_service.h"

#include <algorithm>
#include <utility>

#include "runtime/policy/dram_split.h"
#include "runtime/policy/tree_share.h"

namespace tidepool {

FaultService::Answer FaultService::beginFetch(const GranuleLock& granule, PageIndex page) {
  if (free_count_ == 0) return Answer::kAwaitSlot;
  FarClaim claim = claimFar(core_, granule, {page, PageCount(1)});
  return submitFetch(granule, std::move(claim), Arrival::kFault) ? Answer::kFetching
                                                                 : Answer::kDone;
}

bool FaultService::submitFetch(const GranuleLock& granule, FarClaim claim, Arrival arrival) {
  TP_CHECK(!claim.empty() && free_count_ > 0);
  TP_CHECK_OP(claim.count().value(), <=, kPagesPerFetch);  // the room of a buffer
  const uint32_t slot = free_slots_[--free_count_];
  const uint64_t demanded = arrival == Arrival::kFault ? 1 : 0;
  const PageIndex first = claim.first();
  Fetch& fetch = fetches_[slot];
  fetch = {std::move(claim), first, buffer(slot), demanded, arrival, core_.clock->now()};
  if (arrival == Arrival::kFault) noteTouch(fetch);
  if (fetch.claim.tier() == core_.pool_number) return unpack(granule, slot);
  // In a child of fork() the first read opens it.
  const auto channel = channels_.to(fetch.claim.tier());
  const Status submitted = channel
                               ? (*channel)->submitRead(slot, fetch.claim.frames(), fetch.buffer)
                               : Status(tl::unexpected(channel.error()));
  if (submitted) return true;
  giveUp(granule, fetch, submitted.error().code());
  freeSlot(slot);
  return false;
}

bool FaultService::unpack(const GranuleLock& granule, uint32_t slot) {
  Fetch& fetch = fetches_[slot];
  const uint64_t pages = fetch.claim.count().value();
  const Status read = core_.pool->read(fetch.claim.frames(), fetch.buffer);
  if (read) {
    count(core_.stats->compressed_hits, pages);
    arrive(granule, slot);
    return true;
  }
  giveUp(granule, fetch, read.error().code());
  freeSlot(slot);
  return false;
}

FaultService::Short FaultService::shortOf(std::optional<PageCount> away) const {
  if (!away || core_.options.dram == Bytes()) return Short::kNo;
  const PageCount step = std::max(toPages(core_.options.dram) / DramSplit::kSteps, PageCount(1));
  if (*away * TreeShare::kParts < step) return Short::kPart;
  if (*away < step) return Short::kStep;
  return *away < step * 2 ? Short::kTwoSteps : Short::kNo;
}

void FaultService::noteShort(Short by, Nanoseconds took) {
  if (by == Short::kNo) return;
  StatsPage& stats = *core_.stats;
  count(by == Short::kTwoSteps ? stats.faults_two_steps_short : stats.faults_a_step_short, 1);
  count(stats.faults_short_nanoseconds, took.value());
  if (by == Short::kPart) count(stats.faults_part_short_nanoseconds, took.value());
}

void FaultService::noteTouch(Fetch& fetch) {
  const FarClaim& claim = fetch.claim;
  const bool packed = core_.pool != nullptr && claim.tier() == core_.pool_number;
  const uint32_t age = packed ? core_.pool->ageOf(claim.frames().first) : 0;
  MutexLock lock(policy_.mutex());
  const auto away = policy_.chooser().evictedSince(claim.first());
  fetch.short_of = shortOf(away);
  if (core_.pool == nullptr) return;
  PoolSize& size = policy_.poolSize();
  packed ? size.onHit(age) : size.onFarFault(claim.first(), away);
}

void FaultService::noteArrival(const Fetch& fetch, uint8_t tier) {
  const Nanoseconds took = core_.clock->now() - fetch.started;
  noteShort(fetch.short_of, took + fault_cost_.value());
  if (core_.pool == nullptr) return;
  MutexLock lock(policy_.mutex());
  PoolSize& size = policy_.poolSize();
  size.setFaultCost(fault_cost_.value());
  tier == core_.pool_number ? size.onHitTook(took) : size.onFarTook(took);
}

void FaultService::arrive(const GranuleLock& granule, uint32_t slot) {
  if (install(granule, fetches_[slot])) return freeSlot(slot);
  arrived_.push_back(slot);
  room_.setFaultsWait(true);
  core_.need_memory.ring();
}

void FaultService::freeSlot(uint32_t slot) {
  TP_CHECK_OP(free_count_, <, kFetches);
  fetches_[slot] = Fetch{};
  free_slots_[free_count_++] = slot;
}

void FaultService::giveUp(const GranuleLock& granule, Fetch& fetch, ErrorCode error) {
  // What nobody waits for may be had when somebody does; and of several pages, some may be there.
  if (fetch.arrival != Arrival::kFault) return fetch.claim.abandon(core_, granule);
  const uint64_t lost = fetch.claim.countClaimed(core_);
  const bool first = core_.stats->lost_pages.fetch_add(lost, std::memory_order_relaxed) == 0;
  // Said before: the touch ends the program.
  if (lost > 0) reportLoss(fetch.claim.tier(), error, first);
  fetch.claim.lose(core_, granule);
}

void FaultService::reportLoss(uint8_t tier, ErrorCode error, bool first) {
  const char* const name = core_.tiers.tier(tier).name();
  if (error == ErrorCode::kCorrupt) {
    if (std::exchange(said_unverified_, true)) return;
    return reportError(core_,
                       "a page from far memory %s does not verify: it is not the page that was "
                       "sent there last. It is lost, and ends in SIGBUS when touched",
                       name);
  }
  if (!first) return;
  reportError(core_,
              "far memory %s is lost (%s): pages that live there end in SIGBUS when touched; "
              "restart the program once the memory server is back",
              name, errorCodeName(error));
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
      FarClaim claim = claimFar(core_, granule, {page, PageCount(stop - page)}, kFlagUnproven);
      uint64_t run = claim.count().value();
      if (run > 0) {
        if (!submitFetch(granule, std::move(claim), Arrival::kScan)) return;
      } else {
        run = fillZeros(granule, {page, PageCount(stop - page)});
      }
      if (run == 0) {
        ++page;
        continue;
      }
      tidepool::count(core_.stats->prefetched_pages, run);
      MutexLock policy_lock(policy_.mutex());
      for (uint64_t i = 0; i < run; ++i) policy_.chooser().onPrefetched(page + i);
      room -= run;
      page = page + run;
    }
  }
}

uint64_t FaultService::fillZeros(const GranuleLock& granule, PageRun run) {
  uint64_t zeros = 0;
  while (zeros < run.count.value() &&
         core_.space->word(run.first + zeros).state() == PageState::kZero) {
    ++zeros;
  }
  const PageCount wanted(zeros);
  if (zeros == 0 || !core_.budget.tryCharge(wanted)) return 0;
  static_assert(kPagesPerFetch <= kZeroPages);
  const PortResult copied = copyAll(*core_.port, core_.space->addressOf(run.first), zeros_.data(),
                                    toBytes(wanted), Wake::kNo);
  const PageCount done = toPages(copied.done);
  core_.budget.discharge(wanted - done);
  for (PageIndex page = run.first; page < run.first + done.value(); ++page) {
    core_.space->change(granule, page, core_.space->word(page),
                        PageWord(PageState::kLocal, kFlagUnproven, 0, 0));
  }
  return done.value();
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
    claimForetold(*gather, core_.space->pageAt(address));
    if (gather->pages.size() < most) continue;
    submitGather(*gather);
    most = kPagesPerGather;
    gather = freeGather();
  }
  if (gather != nullptr && !gather->pages.empty()) submitGather(*gather);
}

void FaultService::claimForetold(Gather& gather, PageIndex page) {
  if (page >= core_.space->highWater()) return;
  const GranuleLock granule(*core_.space, granuleOf(page));
  const PageWord word = core_.space->word(page);
  if (fillZeros(granule, {page, PageCount(1)}) > 0) {
    MutexLock lock(policy_.mutex());
    policy_.chooser().onForetold(page);
    return;
  }
  if (core_.pool != nullptr && word.tier() == core_.pool_number)
    return unpackForetold(granule, page);
  if (!gather.pages.empty() && word.tier() != gather.pages[0].claim.tier()) return;
  FarClaim claim = claimFar(core_, granule, {page, PageCount(1)}, kFlagUnproven);
  if (claim.empty()) return;
  TP_CHECK_OP(gather.pages.size(), <, kPagesPerGather);
  const auto number = static_cast<uint64_t>(&gather - gathers_.data());
  const uint64_t at = kFetches * kPagesPerFetch + number * kPagesPerGather + gather.pages.size();
  gather.pages.push_back({.claim = std::move(claim),
                          .first = page,
                          .buffer = buffers_.data() + at * kPageSize,
                          .arrival = Arrival::kScan,
                          .started = core_.clock->now(),
                          .foretold = true});
}

void FaultService::unpackForetold(const GranuleLock& granule, PageIndex page) {
  if (free_count_ <= 1) return;
  FarClaim claim = claimFar(core_, granule, {page, PageCount(1)}, kFlagUnproven);
  if (claim.empty() || !submitFetch(granule, std::move(claim), Arrival::kScan)) return;
  MutexLock lock(policy_.mutex());
  policy_.chooser().onForetold(page);
}

void FaultService::submitGather(Gather& gather) {
  TP_CHECK(!gather.pages.empty() && !gather.under_way);
  std::array<FrameIndex, kPagesPerGather> frames;
  {
    MutexLock lock(policy_.mutex());
    for (size_t i = 0; i < gather.pages.size(); ++i) {
      const FarClaim& claim = gather.pages[i].claim;
      frames[i] = claim.frames().first;
      policy_.chooser().onForetold(claim.first());
    }
  }
  const uint64_t tag = kFetches + static_cast<uint64_t>(&gather - gathers_.data());
  const auto channel = channels_.to(gather.pages[0].claim.tier());
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
    // A thread that waits for one asks for it by itself, and then hears what is wrong with it.
    fetch.claim.abandon(core_, GranuleLock(*core_.space, granuleOf(fetch.first)));
    return true;
  });
  if (gather.pages.empty()) return;
  room_.setFaultsWait(true);
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
      TP_CHECK_OP(tag - kFetches, <, kGathers);
      finishGather(gathers_[tag - kFetches], completions[i].ok());
    }
  }
}

void FaultService::finishFetch(uint32_t slot, bool ok, ErrorCode error) {
  const FarClaim& claim = fetches_[slot].claim;
  TP_CHECK(!claim.empty());
  const GranuleLock granule(*core_.space, granuleOf(claim.first()));
  if (ok) return arrive(granule, slot);
  giveUp(granule, fetches_[slot], error);
  freeSlot(slot);
}

bool FaultService::install(const GranuleLock& granule, Fetch& fetch) {
  FarClaim& claim = fetch.claim;
  if (!core_.budget.tryCharge(claim.count())) {
    if (fetch.demanded != 0 && core_.roomWillCome()) return false;
    if (fetch.demanded == 0) {
      claim.abandon(core_, granule);
      return true;
    }
    core_.budget.charge(claim.count());
  }
  const uint8_t tier = claim.tier();
  const FarCopy copy = keepsCopies(fetch) ? FarCopy::kKept : FarCopy::kDropped;
  // Pages discarded meanwhile split the run; what is left of it goes in piece by piece.
  while (!claim.empty()) {
    if (const uint64_t run = claim.stillClaimed(core_)) {
      installRun(granule, fetch, run, copy);
    } else {
      core_.budget.discharge(PageCount(1));
      claim.settleGone(core_, granule);
    }
  }
  if (fetch.demanded != 0) {
    recordLatency(fetch.started);
    noteArrival(fetch, tier);
  }
  return true;
}

bool FaultService::keepsCopies(const Fetch& fetch) {
  // What a compressed copy takes is local memory.
  if (!core_.port->tracksWrites() || fetch.claim.tier() == core_.pool_number) return false;
  // Copies must not take the room that pages need which have no other home.
  const Tier& tier = core_.tiers.tier(fetch.claim.tier());
  if (tier.closed() || tier.used().value() > tier.capacity().value() / 8 * 7) return false;
  MutexLock lock(policy_.mutex());
  return policy_.copies().worthKeeping(granuleOf(fetch.claim.first()), fetch.arrival);
}

void FaultService::installRun(const GranuleLock& granule, Fetch& fetch, uint64_t pages,
                              FarCopy copy) {
  FarClaim& claim = fetch.claim;
  const Arm arm = copy == FarCopy::kKept ? Arm::kYes : Arm::kNo;
  const PageIndex end = claim.first() + pages;
  while (claim.first() < end) {
    const PageIndex page = claim.first();
    const uint64_t at = page - fetch.first;
    // Where the waker has no part in it, one call does both.
    const bool awaited = !fetch.foretold || fetch.demanded != 0;
    const bool later = awaited && waker_.leaves(core_.clock->now());
    const PortResult copied =
        copyAll(*core_.port, core_.space->addressOf(page), fetch.buffer + at * kPageSize,
                Bytes((end - page) * kPageSize), awaited && !later ? Wake::kYes : Wake::kNo, arm);
    const PageCount done = toPages(copied.done);
    if (done > PageCount()) {
      claim.settleLocal(core_, granule, done, fetch.demanded >> at, copy);
      // A thread that came to wait since the claim was noted; a fault not read yet will find it
      // local.
      if (later) wake(page, done);
    }
    if (copied.outcome == PortOutcome::kDone) continue;
    // The page cannot be filled: its range was released under the reader. The waiter meets whatever
    // the program put there.
    core_.budget.discharge(PageCount(1));
    claim.settleGone(core_, granule);
  }
  count(core_.stats->promotions, pages);
  count(core_.stats->promoted_bytes, pages * kPageSize);
}

}  // namespace tidepool
