// SPDX-License-Identifier: Apache-2.0
// The fault service's thread: reading faults, fresh pages, rescues. Fetches are in
// fault_fetch.cc. One thread runs all of it; page words change under the granule's lock.
#include "runtime/migrate/fault/fault_service.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "runtime/base/debug_check.h"

namespace tidepool {

FaultService::FaultService(Core& core, Staging& staging, SharedPolicy& policy, GranuleMover& mover,
                           Waker& waker)
    : core_(core),
      staging_(staging),
      policy_(policy),
      mover_(mover),
      waker_(waker),
      channels_(core.tiers) {}

FaultService::~FaultService() {
  stop();
  // What is still being read stays where it is.
  const auto abandon = [this](Fetch& fetch) {
    if (fetch.claim.empty()) return;
    fetch.claim.abandon(core_, GranuleLock(*core_.space, granuleOf(fetch.claim.first())));
  };
  for (Fetch& fetch : fetches_) abandon(fetch);
  for (Gather& gather : gathers_) {
    for (Fetch& fetch : gather.pages) abandon(fetch);
  }
}

Result<std::unique_ptr<FaultService>> FaultService::create(Core& core, Staging& staging,
                                                           SharedPolicy& policy,
                                                           GranuleMover& mover, Waker& waker,
                                                           std::unique_ptr<PerfPort> samples) {
  std::unique_ptr<FaultService> service(new FaultService(core, staging, policy, mover, waker));
  constexpr uint64_t kBuffers = kFetches * kPagesPerFetch + kGathers * kPagesPerGather;
  auto buffers = Mapping::anonymous(Bytes(kBuffers * kPageSize));
  if (!buffers) return tl::unexpected(buffers.error());
  service->buffers_ = std::move(*buffers);
  auto zeros = Mapping::anonymous(Bytes(kZeroPages * kPageSize));
  if (!zeros) return tl::unexpected(zeros.error());
  service->zeros_ = std::move(*zeros);
  if (!core.fork.servedChild()) TP_TRY(service->channels_.openAll());
  for (uint32_t slot = 0; slot < kFetches; ++slot) service->free_slots_[slot] = slot;
  service->free_count_ = kFetches;
  service->arrived_.reserve(kFetches);
  if (core.options.foretell && core.options.prefetch && core.tiers.mayHaveFetch()) {
    for (Gather& gather : service->gathers_) gather.pages.reserve(kPagesPerGather);
    service->foreteller_ = Foreteller::create(core, std::move(samples));
  }
  service->deferred_.reserve(64);
  service->queued_.reserve(64);
  return service;
}

Status FaultService::start() {
  return thread_.start(
      "tidepool-fault", [](void* self) { static_cast<FaultService*>(self)->run(); }, this);
}

void FaultService::stop() {
  if (!thread_.running()) return;
  core_.services.stop();
  core_.freed_memory.ring();
  thread_.join();
}

void FaultService::run() {
  follower_.reset();  // it was an earlier thread's
  while (!core_.services.stopping()) turn();
}

void FaultService::turn() {
  if (!follower_) follower_.emplace();
  if (parking() && nothingUnderWay()) core_.parking.park(Parking::Upto::kFaults);
  waitForWork();
  letGo();
  if (!parking()) serveNew();
  if (core_.barrier != nullptr && !parking()) serveBarrier();
  completeFetches();
  if (somethingWaits()) retryDeferred();
  if (!queued_.empty()) serveQueued();
  if (!parking()) fetchAdvised();
}

void FaultService::waitForWork() {
  std::array<pollfd, TierSet::kMost + 4> waits;
  size_t count = 0;
  // On the way to a standstill new faults wait in the kernel.
  const short asks = parking() ? 0 : POLLIN;
  waits[count++] = {core_.port->fd(), asks, 0};
  waits[count++] = {core_.freed_memory.fd(), POLLIN, 0};
  if (core_.barrier != nullptr) waits[count++] = {core_.barrier->fd(), asks, 0};
  std::optional<Nanoseconds> timeout;
  for (const auto& channel : channels_) {
    if (channel == nullptr || channel->inFlight() == 0) continue;
    waits[count++] = {channel->fd(), channel->events(), 0};
    const Nanoseconds left = channel->timeToDeadline();
    timeout = timeout ? std::min(*timeout, left) : left;
  }
  // What watches faults is asked now and then whether it still pays.
  const bool watching = foreteller_ != nullptr && foreteller_->watching();
  if (watching) timeout = timeout ? std::min(*timeout, Foreteller::kTend) : Foreteller::kTend;
  core_.kernel->wait({waits.data(), count}, timeout);
  if (watching && std::none_of(waits.begin(), waits.begin() + static_cast<long>(count),
                               [](const pollfd& wait) { return wait.revents != 0; })) {
    foreteller_->tend(core_.clock->now());
  }
  if ((waits[1].revents & POLLIN) != 0) core_.freed_memory.clear();
}

void FaultService::letGo() {
  const bool changed = core_.retirement.answer([this](uint32_t tiers) {
    for (uint8_t number = 1; number <= TierSet::kMost; ++number) {
      if ((tiers >> number & 1) != 0) channels_.close(number);
    }
  });
  if (changed) core_.need_memory.ring();
}

void FaultService::serveNew() {
  std::array<MissingFault, kFetches> faults;
  const size_t got = core_.port->read(faults);
  if (got == 0) return;
  const Nanoseconds now = core_.clock->now();
  count(core_.stats->faults_missing, got);
  fault_cost_.heard(got == 1 ? faults[0].thread : 0, now);
  for (size_t i = 0; i < got; ++i) {
    serve(faults[i], now);
    // The first of many are on their way while the others are still looked at.
    if ((i + 1) % kFaultsPerSend == 0 || i + 1 == got) flush();
  }
  // One to each thread, but for accesses that reach over the end of a page.
  if (got > 1) {
    follower_->servedSeveral();
  } else {
    follower_->served(faults[0].thread, waker_.strayed());
  }
  if (follower_->bound() != core_.services.faultProcessor()) {
    core_.services.setFaultProcessor(follower_->bound());
    waker_.follow(follower_->bound());
  }
}

void FaultService::flush() {
  for (const auto& channel : channels_) {
    if (channel != nullptr) [[maybe_unused]]
      const Status flushed = channel->flush();
  }
}

void FaultService::fetchAdvised() {
  // As many pieces as one look at the queue is worth: faults come first.
  constexpr int kPieces = 32;
  bool any = false;
  for (int i = 0; i < kPieces && free_count_ > kFetches / 2; ++i) {
    PageRun piece;
    {
      MutexLock lock(policy_.mutex());
      RunQueue& queue = policy_.willNeed();
      piece = queue.front(PageCount(kPagesPerFetch));
      if (piece.count.value() == 0) break;
      queue.drop(piece);
      // Nothing is pushed out for it.
      if (core_.budget.room().value() <= kPagesPerFetch) queue.clear();
    }
    prefetch(piece.first, piece.count);
    rescueAdvised(piece);
    any = true;
  }
  if (!any) return;
  flush();
  // For what is left, should no read be under way whose end calls again.
  core_.freed_memory.ring();
}

void FaultService::rescueAdvised(PageRun piece) {
  for (uint64_t i = 0; i < piece.count.value(); ++i) {
    const PageIndex page = piece.first + i;
    if (core_.space->word(page).state() != PageState::kEvicting) continue;
    if (core_.budget.room().value() <= kPagesPerFetch) return;
    const GranuleLock granule(*core_.space, granuleOf(page));
    const PageWord word = core_.space->word(page);
    if (word.state() == PageState::kEvicting) rescue(granule, page, word);
  }
}

void FaultService::serveBarrier() {
  std::array<MissingFault, 32> faults;
  const size_t got = core_.barrier->read(faults);
  count(core_.stats->faults_write_protect, got);
  for (size_t i = 0; i < got; ++i) {
    // A writer met a page that is being promoted: once the granule's lock is free it has moved, or
    // stays and is open again. Or one that a fork() froze. The writer looks anew.
    const PageIndex page = core_.space->pageAt(faults[i].address);
    const GranuleLock granule(*core_.space, granuleOf(page));
    // Or that is only about to be, with others: then the end of that wakes it.
    if (mover_.closing.has(granule)) continue;
    // Resuming the tier wakes all that wait for it.
    const PageWord word = core_.space->word(page);
    if (word.state() == PageState::kDirect && core_.tiers.tier(word.tier()).suspended()) continue;
    if (!faults[i].closed) {
      mover_.changes.admit(granule, page);
    } else if (core_.fork.forked() && !mover_.changes.thaw(granule, page)) {
      sayExceeded();
    }
    core_.barrier->wake(faults[i].address, Bytes(kPageSize));
  }
}

void FaultService::serve(const MissingFault& fault, Nanoseconds started) {
  if (!core_.space->contains(fault.address)) {
    // Nobody but the kernel touches an empty staging slot, when it is told to bring in everything
    // that is mapped (mlockall by a raw system call). It comes back until it has a page.
    core_.port->copy(fault.address, zeros_.data(), Bytes(kPageSize), Wake::kNo);
    core_.port->wake(fault.address, Bytes(kPageSize));
    return;
  }
  switch (answer(fault)) {
    case Answer::kDone:
      recordLatency(started);
      break;
    case Answer::kFilled:
      recordLatency(started);
      [[fallthrough]];
    case Answer::kFetching:
      fetchMore(fault, started);
      break;
    case Answer::kAwaitSlot:
      queued_.push_back({fault, started});
      break;
    case Answer::kAwaitMemory:
      deferred_.push_back({fault, started});
      room_.setFaultsWait(true);
      core_.need_memory.ring();
      break;
  }
}

void FaultService::fetchMore(const MissingFault& fault, Nanoseconds started) {
  const PageIndex page = core_.space->pageAt(fault.address);
  PageRun run;
  {
    MutexLock lock(policy_.mutex());
    // A first touch tells nothing of what comes after it.
    if (policy_.chooser().evictedSince(page)) policy_.looks().note(granuleOf(page), started);
    run = policy_.chooser().onFault(page, started);
    core_.stats->prefetch_hits.store(policy_.chooser().stats().prefetch_hits,
                                     std::memory_order_relaxed);
  }
  if (run.count.value() > 1 && core_.options.prefetch) {
    prefetchBeside(page, run);
  } else if (foreteller_ != nullptr) {
    foretell(fault, started);
  }
}

FaultService::Answer FaultService::answer(const MissingFault& fault) {
  const PageIndex page = core_.space->pageAt(fault.address);
  const GranuleLock granule(*core_.space, granuleOf(page));
  const PageWord word = core_.space->word(page);
  switch (word.state()) {
    case PageState::kEmpty:
      return fillFresh(granule, page);
    case PageState::kZero: {
      // Its neighbours were touched once, and are cold.
      const Answer filled = fillFresh(granule, page);
      const bool local = core_.space->word(page).state() == PageState::kLocal;
      return local ? Answer::kFilled : filled;
    }
    case PageState::kEvicting:
      return rescue(granule, page, word);
    case PageState::kFar:
      return beginFetch(granule, page);
    case PageState::kFetching:
      // The read under way wakes every waiter; note that one waits, so it counts as demanded.
      noteDemand(page, word);
      return Answer::kFetching;
    case PageState::kLocal:
    case PageState::kDirect:
      // Answered meanwhile, together with a neighbour.
      core_.port->wake(fault.address, Bytes(kPageSize));
      return Answer::kDone;
    case PageState::kLost:
      poisonPage(core_, granule, page);
      return Answer::kDone;
  }
  return Answer::kDone;
}

void FaultService::noteDemand(PageIndex page, PageWord word) {
  const auto note = [&](Fetch& fetch) {
    if (fetch.claim.empty() || page < fetch.claim.first()) return;
    const uint64_t at = page - fetch.claim.first();
    if (at < fetch.claim.count().value() && fetch.claim.owns(word, at)) {
      fetch.demanded |= uint64_t{1} << at;
    }
  };
  for (Fetch& fetch : fetches_) note(fetch);
  for (Gather& gather : gathers_) {
    for (Fetch& fetch : gather.pages) note(fetch);
  }
}

void FaultService::sayExceeded() {
  // A fetch tier that takes no more has said so itself.
  if (said_exceeded_ || (core_.tiers.hasFetch() && core_.room.farExhausted())) return;
  bool room = false;
  core_.tiers.forEach([&](uint8_t, const Tier& tier) {
    if (tier.kind() == TierKind::kCompressed) return;
    room = room || tier.used() + Bytes(kGranuleSize) <= tier.capacity();
  });
  // There is room: it is this granule that cannot go there (docs/limits.md), which passes.
  if (room) return;
  said_exceeded_ = true;
  reportError(core_, "%s",
              core_.tiers.count() == 0
                  ? "the local budget is exceeded: there is no far tier for what is cold; give one "
                    "with --far, or raise --dram"
                  : "the local budget is exceeded: far memory is full; give a larger SIZE or "
                    "another --far, or raise --dram");
}

bool FaultService::granuleIsEmpty(GranuleIndex granule) const {
  for (uint64_t i = 0; i < kPagesPerGranule; ++i) {
    if (core_.space->word(firstPage(granule) + i).state() != PageState::kEmpty) return false;
  }
  return true;
}

PageCount FaultService::freshRun(const GranuleLock& granule, PageIndex page,
                                 PageIndex* start) const {
  const ManagedSpace& space = *core_.space;
  // No further than access goes: a reservation's untouched rest costs nothing, and the kernel fills
  // one mapping at a time.
  const ProtectionStretch alike = space.addresses().stretchAround(
      space.addressOf(page), space.addressOf(granule), space.addressOf(granule.end()));
  const uint64_t first = space.pageAt(alike.start).value();
  const uint64_t last = first + ((alike.end - alike.start) >> kPageShift);
  // Fill ahead as much as was filled before, so that at least half of what is filled is used.
  uint64_t before = 0;
  while (page.value() - before > first &&
         core_.space->word(page - before - 1).state() == PageState::kLocal) {
    ++before;
  }
  if (page == granule.first() && first > 0 &&
      core_.space->word(page - 1).state() == PageState::kLocal) {
    before = kFreshMost;  // goes on from a granule that is full
  }
  uint64_t from = page.value();
  uint64_t wanted = before < kFreshLeast ? kFreshLeast : before;
  if (before == 0) from = std::max(first, roundDown(from, kFreshLeast));
  while (core_.space->word(PageIndex(from)).state() != PageState::kEmpty) ++from;
  uint64_t run = 0;
  while (from + run < last && run < wanted &&
         core_.space->word(PageIndex(from + run)).state() == PageState::kEmpty) {
    ++run;
  }
  TP_DCHECK(granule.covers(PageIndex(from)) && from <= last);
  *start = PageIndex(from);
  return PageCount(run);
}

PortResult FaultService::copyZeros(PageIndex first, PageCount pages) {
  const uintptr_t to = core_.space->addressOf(first);
  PortResult filled;
  while (filled.outcome == PortOutcome::kDone && filled.done < toBytes(pages)) {
    const Bytes piece = std::min(zeros_.size(), toBytes(pages) - filled.done);
    const PortResult one =
        core_.port->copy(to + filled.done.value(), zeros_.data(), piece, Wake::kNo);
    filled.outcome = one.outcome;
    filled.done += one.done;
  }
  return filled;
}

FaultService::Answer FaultService::fillFresh(const GranuleLock& granule, PageIndex page) {
  const Placement placement = placementOf(core_, page);
  if (placement.tier() != 0 && mover_.demoter.placeFar(granule, page)) return Answer::kDone;
  // A granule that will not fit is placed far at once: filled in part, it would be copied there
  // soon after.
  if (core_.tiers.hasDirect() && !placement.isLocal() &&
      core_.budget.room().value() < kFreshMost + kFreshLeast && granuleIsEmpty(granule) &&
      mover_.demoter.placeFar(granule, page)) {
    return Answer::kDone;
  }
  PageIndex start = page;
  PageCount run(1);
  if (core_.space->word(page).state() == PageState::kEmpty) run = freshRun(granule, page, &start);
  if (page.value() >= start.value() + run.value() || !core_.budget.tryCharge(run)) {
    start = page;
    run = PageCount(1);
    if (!core_.budget.tryCharge(run)) {
      if (!placement.isLocal() && mover_.demoter.placeFar(granule, page)) return Answer::kDone;
      if (core_.roomWillCome()) return Answer::kAwaitMemory;
      core_.budget.charge(run);
      sayExceeded();
    }
  }
  PortResult filled = copyZeros(start, run);
  while (filled.outcome == PortOutcome::kRetry && filled.done.value() == 0) {
    filled = copyZeros(start, run);
  }
  const uint64_t done = toPages(filled.done).value();
  TP_CHECK_OP(done, <=, run.value());
  for (uint64_t i = 0; i < done; ++i) {
    core_.space->change(granule, start + i, core_.space->word(start + i),
                        PageWord(PageState::kLocal, 0, 0, 0));
  }
  if (done > 0) wake(start, PageCount(done));
  if (done < run.value()) core_.budget.discharge(PageCount(run.value() - done));
  if (page.value() < start.value() + done) return Answer::kDone;
  // The run left the mapping or met a page that is there: do the one page, or let its thread
  // retry (and take the SIGSEGV that a released range deserves).
  if (run.value() > 1 && core_.budget.tryCharge(PageCount(1))) {
    const PortResult one =
        core_.port->copy(core_.space->addressOf(page), zeros_.data(), Bytes(kPageSize), Wake::kYes);
    if (one.outcome == PortOutcome::kDone) {
      core_.space->change(granule, page, PageWord(), PageWord(PageState::kLocal, 0, 0, 0));
      return Answer::kDone;
    }
    core_.budget.discharge(PageCount(1));
  }
  core_.port->wake(core_.space->addressOf(page), Bytes(kPageSize));
  return Answer::kDone;
}

FaultService::Answer FaultService::rescue(const GranuleLock& granule, PageIndex page,
                                          PageWord word) {
  // The slot keeps its copy, so that a write-back under way goes on undisturbed; the migrator
  // finds the word changed and drops the result. The page exists twice for a moment.
  core_.budget.charge(PageCount(1));
  PortResult copied;
  do {
    copied = core_.port->copy(core_.space->addressOf(page), staging_.slotMemory(word.index()),
                              Bytes(kPageSize), Wake::kNo);
  } while (copied.outcome == PortOutcome::kRetry);
  if (copied.outcome != PortOutcome::kDone) {
    core_.budget.discharge(PageCount(1));
    core_.port->wake(core_.space->addressOf(page), Bytes(kPageSize));
    return Answer::kDone;
  }
  TP_CHECK(core_.space->change(granule, page, word, PageWord(PageState::kLocal, 0, 0, 0)));
  wake(page, PageCount(1));
  count(core_.stats->rescues, 1);
  const Nanoseconds now = core_.clock->now();
  policy_.looks().note(granule, now);
  MutexLock lock(policy_.mutex());
  policy_.chooser().onRescue(page, now);
  return Answer::kDone;
}

bool FaultService::nothingUnderWay() const {
  return free_count_ == kFetches &&
         std::all_of(gathers_.begin(), gathers_.end(),
                     [](const Gather& gather) { return gather.pages.empty(); });
}

bool FaultService::somethingWaits() const {
  return !arrived_.empty() || !deferred_.empty() ||
         std::any_of(gathers_.begin(), gathers_.end(), [](const Gather& gather) {
           return !gather.under_way && !gather.pages.empty();
         });
}

void FaultService::retryDeferred() {
  // Each is tried once a round; what still finds no memory goes back to the list.
  const size_t arrived = arrived_.size();
  for (size_t i = 0; i < arrived; ++i) {
    const uint32_t slot = arrived_.front();
    arrived_.erase(arrived_.begin());
    install(fetches_[slot]) ? freeSlot(slot) : arrived_.push_back(slot);
  }
  for (Gather& gather : gathers_) {
    if (!gather.pages.empty() && !gather.under_way) finishGather(gather, true);
  }
  const size_t waiting = deferred_.size();
  for (size_t i = 0; i < waiting; ++i) {
    const Deferred next = deferred_[i];
    serve(next.fault, next.started);
  }
  deferred_.erase(deferred_.begin(), deferred_.begin() + static_cast<long>(waiting));
  const bool wait = somethingWaits();
  room_.setFaultsWait(wait);
  if (wait) core_.need_memory.ring();
  flush();
}

void FaultService::serveQueued() {
  // While all slots are taken the reads in flight are waited for, and nobody is asked for anything.
  size_t served = 0;
  const size_t waiting = queued_.size();
  while (served < waiting && free_count_ > 0) {
    const Deferred next = queued_[served++];
    serve(next.fault, next.started);
  }
  queued_.erase(queued_.begin(), queued_.begin() + static_cast<long>(served));
  if (served > 0) flush();
}

void FaultService::recordLatency(Nanoseconds started) {
  const Nanoseconds now = core_.clock->now();
  core_.stats->fault_latency.record(now - started);
  fault_cost_.answered(now);
}

}  // namespace tidepool
